package catalog

import "github.com/hashicorp/hcl/v2"

// PluginBlock is one plugin block of the configuration.
type PluginBlock struct {
	Name string
	Args []string

	// Config is the config block in the format that hclspec decodes: a nested block is a
	// []map[string]any, and each string is a template. Nil means that there is no config block.
	Config map[string]any

	// EnvAllowlist names the variables of the agent that the plugin inherits; a name that
	// ends with * is a prefix. Nil means the default: builtinEnv for a builtin plugin, all
	// except some secrets for any other plugin.
	EnvAllowlist []string

	// SHA256 is the value of the option sha256, which Nomad ignores: the required checksum
	// of the file, in hex; "" means any.
	SHA256 string

	// Range is the position of the block; it may be zero for a block made in code.
	Range hcl.Range
}
