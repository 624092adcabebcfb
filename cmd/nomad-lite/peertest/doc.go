// Package peertest tests nomad-lite with programs that are not part of it: the stock Nomad agent,
// Nomad's own task drivers as external plugins, and plugins of other authors.
//
// Host and plugins of this repository share their .proto files, so tests in which both sides are
// ours find no wrong number in them. Here the other side's program shows each field: plugins of
// the SDK run under Nomad, and Nomad's plugins run under nomad-lite. The same job runs under both
// agents, and Nomad's result is the expected result. The table of docs/driver-protocol.md has the
// fields and the tests that show them.
//
// The programs are in ../shared/peers or in the folder that NOMAD_LITE_PEERS names. Without them
// the tests skip themselves.
package peertest
