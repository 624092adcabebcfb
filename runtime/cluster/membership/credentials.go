package membership

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/nomad-lite/nomad-lite/internal/replacefile"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// CredentialsFile is the name of the Credentials file in the data directory.
const CredentialsFile = "node_credentials.json"

// Credentials identify a node to the servers. The state has them, too. A file beside the state has a copy, because a node that
// loses its state would be another one for the servers, and they would start its tasks again elsewhere.
type Credentials struct {
	NodeID, Region string
	NodeSecret     string
	Identity       string // the node's token signed by the servers; empty if they have signed none
}

// ReadCredentials returns the credentials in a file; the zero value if there is no file.
func ReadCredentials(path string) (c Credentials, err error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &c)
	}
	if err == nil && (c.NodeID == "" || c.NodeSecret == "") {
		err = errors.New("it has no id or no secret")
	}
	if err != nil {
		return Credentials{}, fmt.Errorf("credentials of the node in %s: %w", path, err)
	}
	return c, nil
}

// record returns the membership for a region's node that has lost its state; ok is false if the credentials are another node's.
func (c Credentials) record(nodeID, region string) (record state.ClusterMembership, ok bool) {
	return state.ClusterMembership{Region: c.Region, NodeSecret: c.NodeSecret, Identity: c.Identity}, c.NodeID == nodeID && c.Region == region
}

// writeCredentials writes the file if the record has other credentials than the file. It only logs an error, because the state
// has the credentials, too.
func (m *Member) writeCredentials(record state.ClusterMembership) {
	m.credentialsMu.Lock()
	defer m.credentialsMu.Unlock()
	c := Credentials{NodeID: m.config.NodeID, Region: record.Region, NodeSecret: record.NodeSecret, Identity: record.Identity}
	if m.config.CredentialsPath == "" || c == m.written {
		return
	}
	content, err := json.Marshal(c)
	if err == nil {
		err = replacefile.Write(m.config.CredentialsPath, content, 0o600)
	}
	if err != nil {
		m.config.Logger.Warn("credentials of the node not written beside the state", "error", err)
		return
	}
	m.written = c
}
