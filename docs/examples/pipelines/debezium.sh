# Each change of a table of PostgreSQL in a compacted topic: rows by key, deleted rows as tombstones.
sql() { psql --quiet "$DATABASE" --command "$1"; }
connect() { # Debezium on Kafka Connect. CONNECT: the directory with the JARs of debezium/pom.xml
    java -cp "$CONNECT/*" org.apache.kafka.connect.cli.ConnectStandalone \
        debezium/worker.properties debezium/customers.properties >> connect.log 2>&1 &
    trap "kill $! 2> /dev/null" EXIT
}
raftlog topic create shop.public.customers --config cleanup.policy=compact \
    --config min.compaction.lag.ms=604800000 > /dev/null # all changes of a week, to join with
sql 'CREATE TABLE customers (id int PRIMARY KEY, name text, orders int)'
sql "INSERT INTO customers SELECT n, 'customer ' || n, 0 FROM generate_series(1, 1000) AS n"
connect
python debezium_rows.py 'snapshot:'

sql 'UPDATE customers SET orders = orders + 1 WHERE id <= 500'
sql 'DELETE FROM customers WHERE id % 10 = 0'
python debezium_rows.py 'updates and deletions:'

kill -9 $! # Connect: the changes wait in PostgreSQL's replication slot
sql 'UPDATE customers SET orders = orders + 10 WHERE id % 2 = 0'
sql "INSERT INTO customers VALUES (2000, 'late', 7)"
connect
python debezium_rows.py 'after a restart of Connect:'

# Join with history: each order with the name that its customer had at that time.
order() { echo "{\"customer\": 1, \"item\": \"$1\"}" | raftlog produce orders > /dev/null; }
raftlog topic create orders > /dev/null
order tea
sql "UPDATE customers SET name = 'Ada' WHERE id = 1"
python debezium_rows.py 'after a new name:'
order cake
raftlog sql --value json --format csv 'SELECT item, change.after.name FROM orders
    ASOF JOIN (FROM "shop.public.customers" WHERE after IS NOT NULL) AS change
    ON orders.customer = change.after.id AND orders.timestamp >= change.timestamp ORDER BY item DESC'
