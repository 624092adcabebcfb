package java

import (
	"fmt"
	"strings"

	"github.com/nomad-lite/nomad-lite/builtin/hostprocess"
)

// CheckRuntimeInstalled returns an error if the program java is in no directory of the PATH of this process.
// It lets an agent without a Java runtime do without the plugin process of the driver.
func CheckRuntimeInstalled() error {
	_, err := findJavaProgram()
	return err
}

// findJavaProgram returns the path of the program java that is in a directory of the PATH of this
// process. The path has no symbolic links, because a link can lead through directories that do not
// exist in the root directory of a task.
func findJavaProgram() (string, error) {
	path, err := hostprocess.FindProgramInPath("java")
	if err != nil {
		return "", fmt.Errorf("no Java runtime: %w", err)
	}
	return path, nil
}

// jvmVersion is the output of java -version.
type jvmVersion struct {
	version     string // such as "17.0.15" or "1.8.0_392"
	runtimeLine string // such as "OpenJDK Runtime Environment (build 17.0.15+6)"; can be empty
	vmLine      string // such as "OpenJDK 64-Bit Server VM (build 17.0.15+6, mixed mode)"; can be empty
}

// parseVersion returns the version in the output of `java -version`: a line such as
//
//	openjdk version "17.0.15" 2025-04-15
//
// and the two lines after it, about the runtime and about the virtual machine.
func parseVersion(output string) (v jvmVersion, ok bool) {
	lines := strings.Split(output, "\n")
	for i, line := range lines {
		if v.version, ok = parseQuotedVersion(line); ok {
			lines = lines[i+1:]
			break
		}
	}
	if !ok {
		return jvmVersion{}, false
	}
	for _, part := range []*string{&v.runtimeLine, &v.vmLine} {
		if len(lines) > 0 {
			*part, lines = strings.TrimSpace(lines[0]), lines[1:]
		}
	}
	return v, true
}

// parseQuotedVersion returns the version in a line such as `java version "1.8.0_392"`. Other lines can come
// before it, such as "Picked up JAVA_TOOL_OPTIONS: -Xmx1g".
func parseQuotedVersion(line string) (string, bool) {
	product, rest, found := strings.Cut(line, ` version "`)
	version, _, closed := strings.Cut(rest, `"`)
	return version, found && closed && version != "" && !strings.Contains(product, " ")
}
