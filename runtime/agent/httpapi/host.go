package httpapi

import (
	"net"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// publicEnvVars are the environment variables whose values host data may contain, because they are not
// secret.
var publicEnvVars = []string{"GODEBUG", "GOMAXPROCS", "GOMEMLIMIT", "HOME", "LANG", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}

// readHostData replies with facts about the machine for a bug report, as /v1/agent/host of Nomad does.
func (h *debugHandler) readHostData(r *request) (any, error) {
	if !h.debugRoutesEnabled {
		return nil, errPermissionDenied
	}
	if err := h.agent.checkNodeAndServerParams(r); err != nil {
		return nil, err
	}
	n := h.agent.currentNode()
	host := &api.HostData{
		OS:          strings.TrimSpace(n.Attributes["os.name"] + " " + n.Attributes["os.version"] + " " + n.Attributes["kernel.version"]),
		ResolvConf:  readFileTextOrEmpty("/etc/resolv.conf"),
		Hosts:       readFileTextOrEmpty("/etc/hosts"),
		Environment: make(map[string]string),
		Disk:        make(map[string]api.DiskUsage),
	}
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		if !slices.Contains(publicEnvVars, name) {
			value = redactedText
		}
		host.Environment[name] = value
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			continue // the interface was removed meanwhile
		}
		var addressTexts []string
		for _, address := range addresses {
			addressTexts = append(addressTexts, address.String())
		}
		host.Network = append(host.Network, map[string]string{"interface": i.Name, "address": strings.Join(addressTexts, " ")})
	}
	for _, d := range h.hostStats(r.Context()).DiskStats {
		host.Disk[d.Device] = api.DiskUsage{DiskMB: int64(d.Size >> 20), UsedMB: int64(d.Used >> 20)}
	}
	return api.HostDataResponse{AgentID: h.agent.nodeID, HostData: host}, nil
}

// readFileTextOrEmpty returns the content of a file, or "" if it cannot be read.
func readFileTextOrEmpty(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}
