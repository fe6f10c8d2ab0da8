import pytest
from tests.spark_source.test_pushdown import *
from tests.spark_source.test_pushdown import topic, test_filters_prune_what_is_read as prune
for n in list(globals()):
    if n.startswith("test_"): del globals()[n]
@pytest.mark.spark
@pytest.mark.parametrize("n", range(15))
def test_again(spark, load, topic, n):
    prune(spark, load, topic)
