package config

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
)

// The settings of the blocks that are no table of settings, in the order in which messages list them.
var (
	hookSettingNames        = []string{"order", "timeout", "on_error", "match", "config"}
	hookMatchSettingNames   = []string{"job", "group", "driver", "meta"}
	hostNetworkSettingNames = []string{"cidr", "interface", "reserved_ports"}
	hostVolumeSettingNames  = []string{"path", "read_only", "allow_bidirectional", "csi", "per_alloc"}
	auditSinkSettingNames   = []string{"delivery_guarantee", "format", "mode", "path", "rotate_bytes", "rotate_duration", "rotate_max_files", "type"}
	auditFilterSettingNames = []string{"endpoints", "operations", "stages", "type"}
	pluginSettingNames      = []string{"args", "config", "env_allowlist", "sha256"}
	minMaxSettingNames      = []string{"min", "max"}
)

// legacyOptionNames are the supported options of the block "options".
var legacyOptionNames = []string{
	"driver.raw_exec.enable", "driver.allowlist", "driver.whitelist", "driver.denylist", "driver.blacklist", "env.denylist", "env.blacklist",
	"env.allowlist", "user.denylist", "user.blacklist", "user.checked_drivers", "alloc_dir.nomad_modes", "alloc_dir.allow_setuid",
	"docker.endpoint", "docker.auth.config", "docker.auth.helper", "docker.tls.cert", "docker.tls.key", "docker.tls.ca", "docker.cleanup.image",
	"docker.cleanup.image.delay", "docker.cleanup.container", "docker.volumes.enabled", "docker.volumes.selinuxlabel", "docker.privileged.enabled",
	"docker.caps.allowlist", "docker.caps.whitelist",
}

// joinNames returns the names as text of a sentence: "a, b and c".
func joinNames(names []string) string {
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// maxTypoDistance is how many characters of a name can be wrong for a suggestion.
const maxTypoDistance = 2

// didYouMean returns `; did you mean "KNOWN"?` with the known name that is most similar to an unknown name, or "" if none is
// similar. Of equally similar names it takes the first in alphabetical order.
func didYouMean(unknown string, known iter.Seq[string]) string {
	best, least := "", min(maxTypoDistance, len(unknown)-1)+1
	lower := strings.ToLower(unknown)
	for _, name := range slices.Sorted(known) {
		if d := levenshtein.Distance(lower, name, nil); d < least {
			best, least = name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}
