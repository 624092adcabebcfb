// Package keeperserver is the keeper process: it starts processes, records exit statuses and stores descriptors for its clients,
// which use package keeper.
//
// The program runs it before most of its packages are initialized, because their variables would be most of the keeper's memory.
// So this package imports few packages, and none that imports net, runtime/debug, os/exec or path/filepath.
package keeperserver
