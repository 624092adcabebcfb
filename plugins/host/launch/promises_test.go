package launch

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/promises"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
)

const promisesFile = "plugin-environment.txt"

// promiseLines returns the variables that each plugin gets from the agent, and what a plugin needs for the handshake. go-plugin sets further
// variables, which its own handshake describes.
func promiseLines(keeperSocket, dataDirID string) []string {
	lines := []string{
		"handshake, protocol version: " + strconv.FormatUint(uint64(basewire.Handshake.ProtocolVersion), 10),
		basewire.Handshake.MagicCookieKey + ": " + basewire.Handshake.MagicCookieValue,
	}
	for _, v := range PluginEnviron(nil, nil, keeperSocket, dataDirID) {
		name, _, _ := strings.Cut(v, "=")
		lines = append(lines, name)
	}
	slices.Sort(lines)
	return lines
}

func TestReferencePluginEnvironmentPromises(t *testing.T) {
	promises.Check(t, promisesFile, promiseLines("socket", "id"))
}

func TestRemovedVariableBreaksPromise(t *testing.T) {
	promises.CheckOnly(t, promisesFile, promiseLines("", "id"), "NOMAD_LITE_KEEPER")
}
