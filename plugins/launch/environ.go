package launch

import (
	"slices"
	"strings"

	plugin "github.com/hashicorp/go-plugin"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/keeper"
)

// denied is Nomad's default of env.denylist: what neither a task nor a plugin
// inherits from the agent.
var denied = []string{
	"CONSUL_TOKEN", "CONSUL_HTTP_TOKEN", "CONSUL_HTTP_TOKEN_FILE", "NOMAD_TOKEN", "VAULT_TOKEN",
	"CONSUL_LICENSE", "NOMAD_LICENSE", "VAULT_LICENSE",
	"CONSUL_LICENSE_PATH", "NOMAD_LICENSE_PATH", "VAULT_LICENSE_PATH",
	"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_METADATA_URL",
	"GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_OAUTH_ACCESS_TOKEN",
}

// ours are the variables of the handshake: those of the plugin are made for it,
// and must not be those of a process that this one runs in.
var ours = []string{
	base.Handshake.MagicCookieKey,
	"PLUGIN_MIN_PORT", "PLUGIN_MAX_PORT", "PLUGIN_PROTOCOL_VERSIONS", "PLUGIN_CLIENT_CERT", "PLUGIN_MULTIPLEX_GRPC",
	plugin.EnvUnixSocketDir, plugin.EnvUnixSocketGroup,
}

// Variables of this program are its own, and some are secret, except those that
// are meant for plugins.
const (
	ownPrefix    = "NOMAD_LITE_"
	pluginPrefix = "NOMAD_LITE_PLUGIN_"
)

// Environ is the environment of a plugin: environ, which is the agent's, less
// what a plugin must not see, and the address of the keeper.
func Environ(environ []string, keeperSocket string) []string {
	var env []string
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		own := strings.HasPrefix(name, ownPrefix) && !strings.HasPrefix(name, pluginPrefix)
		if own || slices.Contains(denied, name) || slices.Contains(ours, name) {
			continue
		}
		env = append(env, v)
	}
	if keeperSocket != "" {
		env = append(env, keeper.EnvSocket+"="+keeperSocket)
	}
	return env
}
