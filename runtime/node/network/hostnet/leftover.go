package hostnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/google/uuid"

	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/bridge"
)

// RemoveLeftoverNetwork disconnects and removes the namespace of an allocation without a record, because its
// agent's state is lost. It does nothing if there is no such namespace. Files that CNI plugins have stored for the
// allocation stay.
func RemoveLeftoverNetwork(allocID string) error {
	if uuid.Validate(allocID) != nil {
		return nil // agents name their namespaces by allocation ids
	}
	if _, err := os.Lstat(netns.Path(allocID)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := errors.Join(bridge.FindBridgeAndDetach(allocID), netns.Remove(allocID)); err != nil {
		return fmt.Errorf("network of allocation %s: %w", allocID, err)
	}
	return nil
}

// RemoveLeftoverNetworks calls RemoveLeftoverNetwork for each allocation with a directory in allocDirRoot.
func RemoveLeftoverNetworks(allocDirRoot string) error {
	entries, err := os.ReadDir(allocDirRoot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, entry := range entries {
		errs = append(errs, RemoveLeftoverNetwork(entry.Name()))
	}
	return errors.Join(errs...)
}
