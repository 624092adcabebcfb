package qemu

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// CheckDefaultEmulatorInstalled returns an error if the default emulator is in no directory of the PATH of this
// process. It lets an agent without QEMU do without the plugin process of the driver.
func CheckDefaultEmulatorInstalled() error {
	_, err := findEmulator(defaultEmulator)
	return err
}

// Fingerprint reports which emulators are installed, and the version of the first installed
// emulator.
func (d *Driver) Fingerprint(ctx context.Context) driver.Fingerprint {
	names := slices.Sorted(slices.Values(d.currentConfig().EmulatorsAllowlist))
	if len(names) == 0 {
		names = []string{defaultEmulator}
	}
	var found []string
	version, firstErr := "", error(nil)
	for _, name := range slices.Compact(names) {
		path, err := findEmulator(name)
		if err == nil && version == "" {
			version, err = d.versionCache.GetOrRunProgram(ctx, path, "--version", parseVersion)
		}
		if err == nil {
			found = append(found, name)
		} else if firstErr == nil {
			firstErr = err
		}
	}
	if len(found) == 0 {
		return driver.Fingerprint{Health: driver.HealthUndetected, HealthDescription: fmt.Sprintf("no QEMU emulator: %v", firstErr)}
	}
	return driver.Fingerprint{Health: driver.HealthHealthy, Attributes: map[string]driver.Attribute{
		"driver.qemu":           {Value: true},
		"driver.qemu.version":   {Value: version},
		"driver.qemu.emulators": {Value: strings.Join(found, ",")},
	}}
}

// parseVersion returns the version in a line such as "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)".
func parseVersion(output string) (string, bool) {
	_, rest, found := strings.Cut(output, "version ")
	version, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	version, _, _ = strings.Cut(version, "\n")
	return version, found && version != ""
}
