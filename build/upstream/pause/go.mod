module hamlet/upstream/pause

go 1.26.0
