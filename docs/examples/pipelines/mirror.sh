# MirrorMaker: the topics of one cluster in another, with the same offsets, and the groups.
raftlog mirror --from "$RAFTLOG_BOOTSTRAP" --to "$RAFTLOG_TARGET" --topics access-log --once > /dev/null
format='%p:%o %v'
raftlog tail access-log -o earliest --format "$format" | LC_ALL=C sort > source
raftlog tail access-log -o earliest --format "$format" --bootstrap "$RAFTLOG_TARGET" | LC_ALL=C sort > copy
cmp source copy && echo 'the mirror has the same records at the same offsets'
