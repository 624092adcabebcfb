// Package mock is the driver mock_driver: it starts no processes, and behaves as
// the config of its tasks describes. It is for tests of hosts.
//
// A task is "running" for the configured time. Tasks can be recovered, also by
// another process. The fields of config and taskConfig document the options.
package mock
