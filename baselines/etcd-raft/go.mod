module fide/baselines/etcd-raft

go 1.26.0

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0
	// What etcd 3.6 runs. 3.7.0 differs in its protobuf library and copies and measures each entry by reflection: the same
	// node made 0.85 (one client) to 0.53 (1024) of the decisions with it, and would be a weaker baseline.
	go.etcd.io/raft/v3 v3.6.0
	golang.org/x/sys v0.49.0
)

require (
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	google.golang.org/protobuf v1.33.0 // indirect
)
