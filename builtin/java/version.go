package java

import (
	"fmt"
	"strings"

	"github.com/nomad-lite/nomad-lite/builtin/hostprocess"
)

// FindRuntime returns an error if the program java is in no directory of the PATH of this process. An agent without
// it needs no plugin process to find that out.
func FindRuntime() error {
	_, err := findProgram()
	return err
}

// findProgram returns the path of the program java that is in a directory of the PATH of this process. It
// has no symbolic links, which can lead through directories that tasks do not have.
func findProgram() (string, error) {
	path, err := hostprocess.FindProgram("java")
	if err != nil {
		return "", fmt.Errorf("no Java runtime: %w", err)
	}
	return path, nil
}

// jvmVersion is what a virtual machine prints about itself.
type jvmVersion struct {
	version string // such as "17.0.15" or "1.8.0_392"
	runtime string // such as "OpenJDK Runtime Environment (build 17.0.15+6)"; can be empty
	vm      string // such as "OpenJDK 64-Bit Server VM (build 17.0.15+6, mixed mode)"; can be empty
}

// parseVersion returns the version in the output of `java -version`: a line such as
//
//	openjdk version "17.0.15" 2025-04-15
//
// and the two lines after it, about the runtime and about the virtual machine.
func parseVersion(output string) (v jvmVersion, ok bool) {
	lines := strings.Split(output, "\n")
	for i, line := range lines {
		if v.version, ok = quotedVersion(line); ok {
			lines = lines[i+1:]
			break
		}
	}
	if !ok {
		return jvmVersion{}, false
	}
	for _, part := range []*string{&v.runtime, &v.vm} {
		if len(lines) > 0 {
			*part, lines = strings.TrimSpace(lines[0]), lines[1:]
		}
	}
	return v, true
}

// quotedVersion returns the version in a line such as `java version "1.8.0_392"`. Other lines can come
// before it, such as "Picked up JAVA_TOOL_OPTIONS: -Xmx1g".
func quotedVersion(line string) (string, bool) {
	product, rest, found := strings.Cut(line, ` version "`)
	version, _, closed := strings.Cut(rest, `"`)
	return version, found && closed && version != "" && !strings.Contains(product, " ")
}
