# Logstash's file input: a log that grows and is rotated, each line once.
raftlog topic create nginx --partitions 2 > /dev/null
follow="raftlog produce nginx --follow nginx.log --once --state nginx.state"

head -n 4000 access.log > nginx.log
$follow | head -n 1
sed -n 4001,7000p access.log >> nginx.log
mv nginx.log nginx.log.1 # logrotate, before the agent has read the last lines
sed -n 7001,9000p access.log > nginx.log
$follow | head -n 1
sed -n '9001,$p' access.log >> nginx.log
cp nginx.log nginx.log.2 && : > nginx.log # logrotate with copytruncate
echo 'the last line' >> nginx.log
$follow | head -n 1

# Logstash's file output, and the proof that each line is there once.
raftlog tail nginx --to archive --rotate-size 512KiB
cat archive/nginx-*.log | LC_ALL=C sort > received
{ cat access.log && echo 'the last line'; } | LC_ALL=C sort > sent
cmp sent received && echo 'the archive has each line once'
