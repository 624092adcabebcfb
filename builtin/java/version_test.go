package java

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/builtin/sandbox"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

func TestParseVersion(t *testing.T) {
	for _, test := range []struct {
		name, output string
		want         jvmVersion
	}{
		{"OpenJDK 8", `openjdk version "1.8.0_412"
OpenJDK Runtime Environment (build 1.8.0_412-8u412-ga-1~deb9u1-b08)
OpenJDK 64-Bit Server VM (build 25.412-b08, mixed mode)
`, jvmVersion{"1.8.0_412", "OpenJDK Runtime Environment (build 1.8.0_412-8u412-ga-1~deb9u1-b08)", "OpenJDK 64-Bit Server VM (build 25.412-b08, mixed mode)"}},
		{"OpenJDK 11", `openjdk version "11.0.23" 2024-04-16
OpenJDK Runtime Environment (build 11.0.23+9-post-Debian-1deb11u1)
OpenJDK 64-Bit Server VM (build 11.0.23+9-post-Debian-1deb11u1, mixed mode, sharing)
`, jvmVersion{"11.0.23", "OpenJDK Runtime Environment (build 11.0.23+9-post-Debian-1deb11u1)", "OpenJDK 64-Bit Server VM (build 11.0.23+9-post-Debian-1deb11u1, mixed mode, sharing)"}},
		{"OpenJDK 17 with options in the environment", `Picked up JAVA_TOOL_OPTIONS: -Dname= version "9" -XX:+UseBiasedLocking
OpenJDK 64-Bit Server VM warning: Option UseBiasedLocking was deprecated in version 15.0 and will likely be removed in a future release.
openjdk version "17.0.15" 2025-04-15
OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)
OpenJDK 64-Bit Server VM (build 17.0.15+6-Debian-1deb12u1, mixed mode, sharing)
`, jvmVersion{"17.0.15", "OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)", "OpenJDK 64-Bit Server VM (build 17.0.15+6-Debian-1deb12u1, mixed mode, sharing)"}},
		{"Temurin 21", `openjdk version "21.0.3" 2024-04-16 LTS
OpenJDK Runtime Environment Temurin-21.0.3+9 (build 21.0.3+9-LTS)
OpenJDK 64-Bit Server VM Temurin-21.0.3+9 (build 21.0.3+9-LTS, mixed mode, sharing)
`, jvmVersion{"21.0.3", "OpenJDK Runtime Environment Temurin-21.0.3+9 (build 21.0.3+9-LTS)", "OpenJDK 64-Bit Server VM Temurin-21.0.3+9 (build 21.0.3+9-LTS, mixed mode, sharing)"}},
		{"Oracle 7", `java version "1.7.0_80"
Java(TM) SE Runtime Environment (build 1.7.0_80-b15)
Java HotSpot(TM) 64-Bit Server VM (build 24.80-b11, mixed mode)
`, jvmVersion{"1.7.0_80", "Java(TM) SE Runtime Environment (build 1.7.0_80-b15)", "Java HotSpot(TM) 64-Bit Server VM (build 24.80-b11, mixed mode)"}},
		{"Oracle 21", `java version "21.0.3" 2024-04-16 LTS
Java(TM) SE Runtime Environment (build 21.0.3+7-LTS-152)
Java HotSpot(TM) 64-Bit Server VM (build 21.0.3+7-LTS-152, mixed mode, sharing)
`, jvmVersion{"21.0.3", "Java(TM) SE Runtime Environment (build 21.0.3+7-LTS-152)", "Java HotSpot(TM) 64-Bit Server VM (build 21.0.3+7-LTS-152, mixed mode, sharing)"}},
		{"OpenJ9, whose description has several lines", `openjdk version "17.0.11" 2024-04-16
IBM Semeru Runtime Open Edition 17.0.11.0 (build 17.0.11+9)
Eclipse OpenJ9 VM 17.0.11.0 (build openj9-0.44.0, JRE 17 Linux amd64-64-Bit Compressed References
OpenJ9   - b0699311c7
JCL      - 5cb1e0d3b8 based on jdk-17.0.11+9)
`, jvmVersion{"17.0.11", "IBM Semeru Runtime Open Edition 17.0.11.0 (build 17.0.11+9)", "Eclipse OpenJ9 VM 17.0.11.0 (build openj9-0.44.0, JRE 17 Linux amd64-64-Bit Compressed References"}},
		{"the first line alone", `openjdk version "22-ea" 2024-03-19`, jvmVersion{version: "22-ea"}},
		{"line ends of Windows", "java version \"9\"\r\nr\r\nv\r\n", jvmVersion{"9", "r", "v"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, ok := parseVersion(test.output); !ok || got != test.want {
				t.Errorf("got %+v (%v), want %+v", got, ok, test.want)
			}
		})
	}
	for _, output := range []string{"", "\n", "java 17.0.15", `openjdk version ""`, `openjdk version "17`, ` version`} {
		if got, ok := parseVersion(output); ok {
			t.Errorf("%q has the version %+v", output, got)
		}
	}
}

func FuzzParseVersion(f *testing.F) {
	f.Add("openjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime Environment\nOpenJDK 64-Bit Server VM\n")
	f.Add("Picked up _JAVA_OPTIONS: x\njava version \"1.8.0\"\n\n")
	f.Fuzz(func(t *testing.T, output string) {
		v, ok := parseVersion(output)
		if ok != (v.version != "") {
			t.Errorf("found is %v with the version %q", ok, v.version)
		}
		for _, part := range []string{v.version, v.runtimeLine, v.vmLine} {
			if strings.Contains(part, "\n") || !strings.Contains(output, part) {
				t.Errorf("%q is no part of a line", part)
			}
		}
	})
}

// fakeRuntime makes a program java that appends a line to the file "starts" beside it, and runs a script.
func fakeRuntime(t *testing.T, program, script string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	script = fmt.Sprintf("#!/bin/sh\necho start >>%s/starts\n%s\n", filepath.Dir(program), script)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

const printVersion = `test "$*" = -version || exit 1
printf 'openjdk version "%s"\nthe runtime\nthe machine\n' >&2 `

func countStarts(t *testing.T, dir string) int {
	t.Helper()
	starts, err := os.ReadFile(filepath.Join(dir, "starts"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(starts), "\n")
}

func TestFingerprint(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("isolation needs root")
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	program := filepath.Join(dir, "runtime")
	fakeRuntime(t, program, printVersion+"17.0.1")
	if err := os.Symlink(program, filepath.Join(dir, "java")); err != nil {
		t.Fatal(err)
	}
	d := &Driver{}
	check := func(wantVersion string, wantStarts int) {
		t.Helper()
		got := d.Fingerprint(t.Context())
		if got.Health != driver.HealthHealthy || got.Attributes["driver.java"].Value != true || got.Attributes["driver.java.version"].Value != wantVersion ||
			got.Attributes["driver.java.runtime"].Value != "the runtime" || got.Attributes["driver.java.vm"].Value != "the machine" {
			t.Errorf("the fingerprint is %+v, want the version %s", got, wantVersion)
		}
		if starts := countStarts(t, dir); starts != wantStarts {
			t.Errorf("the virtual machine was started %d times, want %d", starts, wantStarts)
		}
	}
	check("17.0.1", 1)
	check("17.0.1", 1)
	fakeRuntime(t, program, printVersion+"17.0.22")
	check("17.0.22", 2)
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(program, later, later); err != nil {
		t.Fatal(err)
	}
	check("17.0.22", 3)
	check("17.0.22", 3)
}

func TestFingerprintWithoutRuntime(t *testing.T) {
	if err := sandbox.CheckIsolationAvailable(); err != nil {
		t.Skipf("the driver is undetected for another reason: %v", err)
	}
	for _, test := range []struct{ name, script, want string }{
		{"missing", "", "no Java runtime: the program java is in no directory of the agent's PATH (DIR)"},
		{"broken", "echo 'libjvm.so is missing'; echo more; exit 3", "DIR/java -version: exit status 3: libjvm.so is missing"},
		{"another program", "echo hello", "DIR/java -version prints no version: hello"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir)
			if test.script != "" {
				fakeRuntime(t, filepath.Join(dir, "java"), test.script)
			}
			got := new(Driver).Fingerprint(t.Context())
			if want := strings.ReplaceAll(test.want, "DIR", dir); got.Health != driver.HealthUndetected || got.HealthDescription != want || got.Attributes != nil {
				t.Errorf("the fingerprint is %+v, want undetected: %s", got, want)
			}
		})
	}
}
