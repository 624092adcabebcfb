// Package mock is the driver mock_driver: it runs nothing, and behaves as its
// tasks' config says. It is for tests of hosts.
//
// Its tasks are bookkeeping: one "runs" until its time is over. They can be
// recovered, also by another process. What each knob does is told at the field
// of config and taskConfig that it fills.
package mock
