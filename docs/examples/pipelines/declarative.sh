# Storm's topology as a project of Spark Declarative Pipelines: a topic, two flows, a topic.
spark-pipelines run --spec alerts/spark-pipeline.yml > run.log 2>&1 || { tail -n 30 run.log; exit 1; }
raftlog tail alerts -o earliest --format '%v' | cut -d : -f 1 | LC_ALL=C sort | uniq -c
spark-pipelines run --spec alerts/spark-pipeline.yml > run.log 2>&1 # again: only new records
raftlog tail alerts -o earliest | wc -l
