package osprocess

import "os"

// GoRuntimeEnv returns the environment variables of this process that Go's runtime reads.
// Helper processes get no other variables, so that they do not inherit the agent's secrets.
func GoRuntimeEnv() []string {
	env := []string{}
	for _, name := range []string{"GODEBUG", "GORACE", "GOTRACEBACK", "GOCOVERDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}
