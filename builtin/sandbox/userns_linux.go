package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/nomad-lite/nomad-lite/builtin/sandbox/stage"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// IsRoot reports whether this process can isolate tasks without a user namespace.
func IsRoot() bool { return os.Geteuid() == 0 }

// UseUserNamespace sets the options for a driver that is not root. Its tasks run as the user of the
// driver, so that they share no processes and no memory with the machine, and have no capabilities.
// It returns an error if the options or the request need an agent of root.
func (o *Options) UseUserNamespace(r CapabilityRequest) error {
	o.InUserNamespace = true
	switch {
	case o.HostPID:
		return errors.New(`pid_mode "host" needs an agent of root: the task could control the agent, which is a process of the same user`)
	case o.HostIPC:
		return errors.New(`ipc_mode "host" needs an agent of root: the task could change the shared memory of the agent's user`)
	case len(r.Add) > 0:
		return errors.New("cap_add needs an agent of root: a task in a user namespace has no capabilities on the machine")
	}
	_, err := r.ResolvePrivileges()
	return err
}

// TaskCredential returns the ids of a task. user is the user of the job; "" means defaultUser. Without
// root, TaskCredential returns the ids of this process, or an error if the job names another
// user.
func TaskCredential(user, defaultUser string) (*syscall.Credential, error) {
	if IsRoot() {
		return process.Credential(cmp.Or(user, defaultUser))
	}
	own := &syscall.Credential{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}
	if user == "" {
		return own, nil
	}
	cred, err := process.Credential(user)
	if err != nil {
		return nil, err
	}
	if cred.Uid != own.Uid || cred.Gid != own.Gid {
		return nil, fmt.Errorf("running as user %q needs an agent of root: this agent runs all tasks as its own user %d", user, own.Uid)
	}
	return own, nil
}

// available is set when a user namespace was made.
var available atomic.Bool

// CheckIsolationAvailable returns nil if this process can isolate tasks, and otherwise the reason with its remedy. It
// is safe for concurrent use.
func CheckIsolationAvailable() error {
	if IsRoot() || available.Load() {
		return nil
	}
	if err := probeUserNamespace(); err != nil {
		return fmt.Errorf("the agent is not root, and tasks cannot be isolated in a user namespace: %w: %s", err, userNamespaceRemedy("/proc/sys"))
	}
	available.Store(true)
	return nil
}

// probeUserNamespace starts a stage that only makes the namespaces of a task and a mount in them, and returns
// the error of the stage.
func probeUserNamespace() error {
	launch, err := newStageLaunch(&stage.Config{ProbeOnly: true, InUserNamespace: true, PrivateNamespaces: stage.PrivateNamespaces{PID: true, IPC: true}})
	if err != nil {
		return err
	}
	defer launch.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	attr := &os.ProcAttr{Dir: "/", Env: launch.Env, Files: append([]*os.File{null, null, null}, launch.Files...), Sys: &syscall.SysProcAttr{}}
	launch.SetAttributes(attr.Sys)
	opcount.Count(opcount.Fork)
	p, err := os.StartProcess(launch.Path, launch.Args, attr)
	if err != nil {
		return errors.Unwrap(err)
	}
	err = launch.WaitForExec()
	_, waitErr := p.Wait()
	return errors.Join(err, waitErr)
}

// forbiddingSettings are the settings of kernels with which user namespaces are forbidden.
var forbiddingSettings = []struct{ path, value, remedy string }{
	{"user/max_user_namespaces", "0", "root can allow them with sysctl -w user.max_user_namespaces=15000"},
	{"kernel/unprivileged_userns_clone", "0", "root can allow them with sysctl -w kernel.unprivileged_userns_clone=1"},
	{"kernel/apparmor_restrict_unprivileged_userns", "1", "root can allow them with an AppArmor profile for this program that has the rule userns, or with sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
}

// userNamespaceRemedy returns a hint for operators how to make user namespaces work. procSysDir is the directory with
// the settings of the kernel.
func userNamespaceRemedy(procSysDir string) string {
	for _, s := range forbiddingSettings {
		if value, err := os.ReadFile(procSysDir + "/" + s.path); err == nil && strings.TrimSpace(string(value)) == s.value {
			return s.remedy
		}
	}
	return "run the agent as root, or where a container or a policy of the machine does not forbid user namespaces"
}

// Fingerprint returns the fingerprint of a driver whose tasks are isolated. Without root, it states which
// limits are not enforced.
func Fingerprint(driverName string) driver.Fingerprint {
	if err := CheckIsolationAvailable(); err != nil {
		return driver.Fingerprint{Health: driver.HealthUndetected, HealthDescription: err.Error()}
	}
	f := driver.Fingerprint{
		Health:     driver.HealthHealthy,
		Attributes: map[string]driver.Attribute{"driver." + driverName: {Value: true}},
	}
	if IsRoot() {
		return f
	}
	f.Attributes["driver."+driverName+".rootless"] = driver.Attribute{Value: true}
	if limits, reason := process.UnenforcedLimits(); len(limits) > 0 {
		f.Attributes["driver."+driverName+".not_enforced"] = driver.Attribute{Value: strings.Join(limits, ",")}
		f.HealthDescription = fmt.Sprintf("Healthy; limits of %s are not enforced: %s", strings.Join(limits, ", "), reason)
	}
	return f
}
