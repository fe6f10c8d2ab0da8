# rsyslog's omkafka: lines of a file to a topic, with a restart of the agent in between.
raftlog topic create syslog --partitions 2 > /dev/null
mkdir spool
cat > rsyslog.conf << END
global(workDirectory="$PWD/spool" maxMessageSize="64k")
module(load="imfile")
module(load="omkafka")
template(name="line" type="string" string="%msg%")
input(type="imfile" file="$PWD/web.log" tag="web")
action(type="omkafka" broker=["$RAFTLOG_BOOTSTRAP"] topic="syslog" template="line"
       confParam=["enable.idempotence=true", "compression.codec=lz4"]
       resubmitOnFailure="on" keepFailedMessages="on" failedMsgFile="$PWD/spool/failed")
END

send() { # what is new, until the topic has $1 lines
    timeout 120 rsyslogd -n -f "$PWD/rsyslog.conf" -i "$PWD/rsyslogd.pid" &
    timeout 120 raftlog tail syslog -f -o earliest -n "$1" > received
    kill "$!" && wait "$!" || true
    echo "$(wc -l < received) lines"
}

head -n 6000 access.log > web.log
send 6000
sed -n '6001,$p' access.log >> web.log
send 10000
cmp <(LC_ALL=C sort access.log) <(LC_ALL=C sort received) && echo 'each line is there once'
