package launch

import (
	"slices"
	"strings"

	plugin "github.com/hashicorp/go-plugin"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// handshakeVars are the variables of the go-plugin handshake. PluginEnviron omits them from the agent's environment,
// because a plugin host may have started the agent and have set them for its own handshake.
var handshakeVars = []string{
	basewire.Handshake.MagicCookieKey,
	"PLUGIN_MIN_PORT", "PLUGIN_MAX_PORT", "PLUGIN_PROTOCOL_VERSIONS", "PLUGIN_CLIENT_CERT", "PLUGIN_MULTIPLEX_GRPC",
	plugin.EnvUnixSocketDir, plugin.EnvUnixSocketGroup,
}

// Variables with the prefix agentEnvPrefix are for the agent only, and some are secret.
// Variables with the longer prefix pluginEnvPrefix are for plugins.
const (
	agentEnvPrefix  = "NOMAD_LITE_"
	pluginEnvPrefix = "NOMAD_LITE_PLUGIN_"
)

// PluginEnviron returns the environment of a plugin: those variables of agentEnviron whose names match
// allowPatterns, the path of the keeper's socket, and the id of the data directory. The pattern NAME* matches every
// name with the prefix NAME. A nil allowPatterns permits all variables but those in [base.DefaultEnvDenylist].
// Variables for the agent only (agentEnvPrefix) and handshakeVars are never included.
func PluginEnviron(agentEnviron, allowPatterns []string, keeperSocket, dataDirID string) []string {
	var env []string
	for _, v := range agentEnviron {
		name, _, _ := strings.Cut(v, "=")
		own := strings.HasPrefix(name, agentEnvPrefix) && !strings.HasPrefix(name, pluginEnvPrefix)
		if !own && !slices.Contains(handshakeVars, name) && isAllowedEnv(name, allowPatterns) {
			env = append(env, v)
		}
	}
	if keeperSocket != "" {
		env = append(env, keeper.EnvSocket+"="+keeperSocket)
	}
	if dataDirID != "" {
		env = append(env, keeper.EnvDirectoryID+"="+dataDirID)
	}
	return env
}

func isAllowedEnv(name string, allowPatterns []string) bool {
	if allowPatterns == nil {
		return !slices.Contains(base.DefaultEnvDenylist(), name)
	}
	return slices.ContainsFunc(allowPatterns, func(pattern string) bool {
		prefix, open := strings.CutSuffix(pattern, "*")
		return name == pattern || open && strings.HasPrefix(name, prefix)
	})
}
