"""A broker among others: membership, who leads which partition, and copying from those who do."""
