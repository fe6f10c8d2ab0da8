# A table of PostgreSQL kept equal to another one by Kafka Connect: Debezium in, its JDBC sink out.
sql() { psql --quiet --tuples-only --no-align "$DATABASE" --command "$1"; }
connect() { # both connectors. CONNECT: the directory with the JARs of debezium/pom.xml
    java -cp "$CONNECT/*" org.apache.kafka.connect.cli.ConnectStandalone debezium/worker.properties \
        debezium/items.properties debezium/items-copy.properties >> connect.log 2>&1 &
    trap "kill $! 2> /dev/null" EXIT
}
rows() { sql "SELECT count(*), sum(price) FROM $1 WHERE name IS NOT NULL" 2> /dev/null; }
wait_until_equal() {
    until [ "$(rows items)" = "$(rows items_copy)" ]; do sleep 0.3; done
    echo "$1 $(rows items_copy)"
}
raftlog topic create stock.public.items --config cleanup.policy=compact > /dev/null
sql 'CREATE TABLE items (id int PRIMARY KEY, name text, price int)'
sql "INSERT INTO items SELECT n, 'item ' || n, n FROM generate_series(1, 1000) AS n"
connect
wait_until_equal 'snapshot:'

sql 'UPDATE items SET price = price + 1 WHERE id <= 500'
sql 'DELETE FROM items WHERE id % 10 = 0'
wait_until_equal 'updates and deletions:'

kill -9 $! # Connect: the sink repeats what it had not committed, by key
sql "INSERT INTO items VALUES (2000, 'late', 7)"
connect
wait_until_equal 'after a restart of Connect:'
