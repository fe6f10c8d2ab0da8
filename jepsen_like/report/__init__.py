"""Reports: what a run looked like and how it was judged, for people."""
