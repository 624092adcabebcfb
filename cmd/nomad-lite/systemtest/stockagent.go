package systemtest

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

const stockAgentConfig = `
name                 = %q
data_dir             = %q
bind_addr            = "127.0.0.1"
disable_update_check = true
ports {
  http = %d
  rpc  = %d
  serf = %d
}
advertise {
  http = "127.0.0.1"
  rpc  = %q
  serf = "127.0.0.1"
}
%s
`

// FormatStockAgentConfig returns a configuration of the stock Nomad agent. ports are its ports for HTTP, RPC and Serf. Other agents
// reach its RPC port at the address rpcAddr. blocks are the further blocks of the configuration.
func FormatStockAgentConfig(name, dataDir string, ports []int, rpcAddr, blocks string) string {
	return fmt.Sprintf(stockAgentConfig, name, dataDir, ports[0], ports[1], ports[2], rpcAddr, blocks)
}

// NewStockAgentCommand returns the command that runs the stock Nomad agent program with a configuration file.
func NewStockAgentCommand(program, configFile string) *exec.Cmd {
	command := exec.Command(program, "agent", "-config", configFile)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "AWS_CA_BUNDLE=") || strings.HasPrefix(v, "NOMAD_")
	})
	return command
}
