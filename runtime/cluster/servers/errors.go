package servers

import (
	"errors"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// ErrNoServers is the error of a call while the server list is empty.
var ErrNoServers = errors.New("no servers are known: name them in client.servers of the configuration")

// Server errors have no codes, and a server that has forwarded a call may add a prefix, so their texts are searched.

// isFromServer reports whether err is a server's answer that contains one of the given texts.
func isFromServer(err error, texts ...string) bool {
	var answer wire.ServerError
	if !errors.As(err, &answer) {
		return false
	}
	for _, text := range texts {
		if strings.Contains(string(answer), text) {
			return true
		}
	}
	return false
}

// IsPermissionDenied reports whether a server rejected a call's token.
func IsPermissionDenied(err error) bool { return isFromServer(err, "Permission denied") }

// IsTokenRejected reports whether a server rejected a user's token, or does not have it.
func IsTokenRejected(err error) bool { return isFromServer(err, "ACL token", "Permission denied") }

// IsNodeNotFound reports whether the servers do not have the node, because it was purged or their state was lost.
func IsNodeNotFound(err error) bool {
	var answer wire.ServerError
	return isFromServer(err, "node not found") ||
		errors.As(err, &answer) && strings.Contains(string(answer), "node ") && strings.HasSuffix(string(answer), " not found")
}

// IsUnknownAlloc reports whether the servers do not have an allocation, or do not show it to the node.
func IsUnknownAlloc(err error) bool { return isFromServer(err, "Unknown allocation") }

// IsSecretMismatch reports whether the servers have the node's ID with another node's secret.
func IsSecretMismatch(err error) bool { return isFromServer(err, "node secret ID does not match") }

// IsUpdateRefused reports whether the servers take no allocation states because they have missed the node's heartbeats.
func IsUpdateRefused(err error) bool {
	return isFromServer(err, "is not allowed to update allocs while in status")
}

// IsUnknownMethod reports whether the server lacks the called method, because its version is older or newer.
func IsUnknownMethod(err error) bool {
	return isFromServer(err, "rpc: can't find service", "rpc: can't find method")
}

// IsServiceNotFound reports whether a service registration to delete does not exist.
func IsServiceNotFound(err error) bool { return isFromServer(err, "service registration not found") }

// IsUnreachable reports whether err means that no server could decide about a call: none was reached, or they have no leader. The
// same call can succeed later.
func IsUnreachable(err error) bool {
	return err != nil && (!isFromAnyServer(err) || isNoLeader(err))
}

// isNoLeader reports whether the servers elect a leader, so the same call can succeed soon.
func isNoLeader(err error) bool {
	return isFromServer(err, "No cluster leader", "Not ready to serve consistent reads", "failed to reset heartbeat since server is not leader", "rpc error: EOF")
}

// isFromAnyServer reports whether a server has answered the call.
func isFromAnyServer(err error) bool {
	var answer wire.ServerError
	return errors.As(err, &answer)
}
