"""What Spark's reading and writing of topics costs, for ``raftlog bench spark``.

Each figure is measured beside what bounds it, in alternate rounds of the same run: the pipe between
Spark and Python fed from memory, Parquet with the same records, the rows without a writer.
"""
