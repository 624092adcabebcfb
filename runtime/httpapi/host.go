package httpapi

import (
	"net"
	"net/http/pprof"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// agentProfile returns profiles of the agent for troubleshooting.
func (a *API) agentProfile(r *request) (any, error) {
	if !a.config.Debug {
		return nil, errDenied
	}
	if err := r.thisNode(a); err != nil {
		return nil, err
	}
	handler := pprof.Handler(r.id).ServeHTTP
	switch r.id {
	case "cmdline":
		handler = pprof.Cmdline
	case "profile":
		handler = pprof.Profile
	case "trace":
		handler = pprof.Trace
	}
	r.answered = true
	handler(r.w, r.Request)
	return nil, nil
}

// shown are the environment variables whose values are not secret.
var shown = []string{"GODEBUG", "GOMAXPROCS", "GOMEMLIMIT", "HOME", "LANG", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}

// agentHost returns host data for a bug report.
func (a *API) agentHost(r *request) (any, error) {
	if !a.config.Debug {
		return nil, errDenied
	}
	if err := r.thisNode(a); err != nil {
		return nil, err
	}
	n := a.node()
	host := &api.HostData{
		OS:          strings.TrimSpace(n.Attributes["os.name"] + " " + n.Attributes["os.version"] + " " + n.Attributes["kernel.version"]),
		ResolvConf:  fileText("/etc/resolv.conf"),
		Hosts:       fileText("/etc/hosts"),
		Environment: make(map[string]string),
		Disk:        make(map[string]api.DiskUsage),
	}
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		if !slices.Contains(shown, name) {
			value = redacted
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
			continue // the file system was unmounted meanwhile
		}
		var texts []string
		for _, address := range addresses {
			texts = append(texts, address.String())
		}
		host.Network = append(host.Network, map[string]string{"interface": i.Name, "address": strings.Join(texts, " ")})
	}
	for _, d := range a.config.Node.Usage(r.Context()).DiskStats {
		host.Disk[d.Device] = api.DiskUsage{DiskMB: int64(d.Size >> 20), UsedMB: int64(d.Used >> 20)}
	}
	return api.HostDataResponse{AgentID: a.config.NodeID, HostData: host}, nil
}

// fileText returns the content of a file, or "" if it cannot be read.
func fileText(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}
