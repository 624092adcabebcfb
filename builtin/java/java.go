package java

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/nomad-lite/nomad-lite/builtin/hostprocess"
	"github.com/nomad-lite/nomad-lite/builtin/isolated"
	"github.com/nomad-lite/nomad-lite/builtin/sandbox"
	"github.com/nomad-lite/nomad-lite/builtin/sandbox/stage"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// Name is the name of the driver in a job.
const Name = "java"

// Driver is the driver java. Its zero value is ready for use.
type Driver struct {
	isolated.Driver
	versionCache hostprocess.ProgramVersionCache[jvmVersion]
}

var (
	_ sdk.Driver[*isolated.Task]    = (*Driver)(nil)
	_ sdk.Recoverer[*isolated.Task] = (*Driver)(nil)
	_ sdk.Adopter[*isolated.Task]   = (*Driver)(nil)
	_ sdk.Fingerprinter             = (*Driver)(nil)
)

// taskConfig is the `config` block of a task.
type taskConfig struct {
	isolated.TaskConfig
	Class      string   `codec:"class"`
	ClassPath  string   `codec:"class_path"`
	JarPath    string   `codec:"jar_path"`
	JVMOptions []string `codec:"jvm_options"`
	Args       []string `codec:"args"`
}

var taskSchema = isolated.TaskSchema(map[string]*hclspec.Spec{
	"class":       hclspec.Attr("class", "string", false),
	"class_path":  hclspec.Attr("class_path", "string", false),
	"jar_path":    hclspec.Attr("jar_path", "string", false),
	"jvm_options": hclspec.Attr("jvm_options", "list(string)", false),
	"args":        hclspec.Attr("args", "list(string)", false),
})

// Info describes the driver.
func (d *Driver) Info() sdk.DriverInfo { return isolated.NewDriverInfo(Name, taskSchema) }

// Fingerprint reports whether tasks can run, and the version of the virtual machine.
func (d *Driver) Fingerprint(ctx context.Context) driver.Fingerprint {
	print := sandbox.Fingerprint(Name)
	if print.Health != driver.HealthHealthy {
		return print
	}
	v, err := d.readJVMVersion(ctx)
	if err != nil {
		return driver.Fingerprint{Health: driver.HealthUndetected, HealthDescription: err.Error()}
	}
	for name, value := range map[string]string{"version": v.version, "runtime": v.runtimeLine, "vm": v.vmLine} {
		if value != "" {
			print.Attributes["driver.java."+name] = driver.Attribute{Value: value}
		}
	}
	return print
}

// readJVMVersion returns the version of the virtual machine that runs tasks.
func (d *Driver) readJVMVersion(ctx context.Context) (jvmVersion, error) {
	program, err := findJavaProgram()
	if err != nil {
		return jvmVersion{}, err
	}
	return d.versionCache.GetOrRunProgram(ctx, program, "-version", parseVersion)
}

// Start starts the Java program of a task.
func (d *Driver) Start(ctx context.Context, start *sdk.StartRequest) (*isolated.Task, error) {
	var tc taskConfig
	if err := start.DecodeConfig(&tc); err != nil {
		return nil, err
	}
	args, err := tc.javaArgs()
	if err != nil {
		return nil, err
	}
	program, err := findJavaProgram()
	if err != nil {
		return nil, err
	}
	t, err := d.StartCommand(ctx, start, &tc.TaskConfig, process.Command{Path: program, Args: args})
	if failure := (&stage.Failure{}); errors.As(err, &failure) && errors.Is(failure, os.ErrNotExist) {
		return nil, fmt.Errorf("%w; a task has the Java runtime of the agent, if chroot_env of the agent names %s or a directory above it", err, filepath.Dir(filepath.Dir(program)))
	}
	return t, err
}

// Adopt finds the Java program of a start whose plugin process has died.
func (d *Driver) Adopt(ctx context.Context, start *sdk.StartRequest) (*isolated.Task, error) {
	return d.AdoptCommand(ctx, start, func() (*isolated.TaskConfig, error) {
		var tc taskConfig
		err := start.DecodeConfig(&tc)
		return &tc.TaskConfig, err
	})
}

// javaArgs returns the arguments of the program java.
func (c *taskConfig) javaArgs() ([]string, error) {
	args := slices.Clone(c.JVMOptions)
	classPath := c.ClassPath
	switch {
	case c.JarPath == "" && c.Class == "":
		return nil, errors.New("jar_path or class must be specified")
	case c.JarPath != "" && c.Class != "":
		// The jar is added to the class path: the option -jar would run the class that the manifest
		// of the jar names.
		classPath = joinClassPath(classPath, c.JarPath)
	}
	if classPath != "" {
		args = append(args, "-cp", classPath)
	}
	if c.Class != "" {
		args = append(args, c.Class)
	} else {
		args = append(args, "-jar", c.JarPath)
	}
	return append(args, c.Args...), nil
}

func joinClassPath(path, entry string) string {
	if path == "" {
		return entry
	}
	return path + string(filepath.ListSeparator) + entry
}
