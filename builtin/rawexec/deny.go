package rawexec

import "path"

// removeDeniedVars removes the environment variables whose names match one of the
// patterns, in which * matches any text.
func removeDeniedVars(env map[string]string, patterns []string) {
	for name := range env {
		for _, pattern := range patterns {
			if ok, err := path.Match(pattern, name); err == nil && ok {
				delete(env, name)
			}
		}
	}
}
