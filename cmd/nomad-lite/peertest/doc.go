// Package peertest tests nomad-lite with programs that other projects make: the stock Nomad agent, Nomad's own task
// drivers as external plugins, and plugins of other authors.
//
// Host and plugins of this repository share their .proto files, so a wrong field number in these files stays undetected
// if both sides are built from them. In these tests one side is built from Nomad's own files: plugins of the SDK run
// under Nomad, and Nomad's plugins run under nomad-lite. The same job runs under both agents, and Nomad's result is the
// expected result. The table in docs/reference/driver-protocol.md lists the fields and the tests that cover them.
//
// The programs are in ../shared/peers or in the folder that NOMAD_LITE_PEERS names. Without them
// the tests skip themselves.
package peertest
