package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/apk" // registers the package format
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the package format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the package format
)

const (
	projectURL = "https://github.com/nomad-lite/nomad-lite"
	licenceID  = "MPL-2.0"
	// maintainer is the field that package formats require. Its address accepts no mail.
	maintainer = "The nomad-lite authors <noreply@github.com>"
)

// packageFormats are the formats of packages, with the scripts that their package managers call.
var packageFormats = map[string]scripts{
	"deb": {
		postInstall: `case "$1" in
configure)
	# dpkg gives the previous version also if the package was removed, and not purged.
	if [ -n "${2:-}" ] && [ ! -d "$kept" ]; then after_upgrade; else after_install; fi ;;
abort-remove) after_failed_removal ;;
esac
`,
		preRemove: `case "$1" in
remove)
	(umask 077 && mkdir -p "$kept") || true # also without data: postinst then starts an enabled service again
	before_remove "apt purge nomad-lite"
	;;
esac
`,
		postRemove: `case "$1" in
remove) after_remove ;;
purge) after_purge ;;
esac
`,
	},
	// An upgrade calls the scripts of the new package, and then preRemove and postRemove of the previous one with 1.
	"rpm": {
		postInstall: `if [ "$1" -gt 1 ]; then after_upgrade; else after_install; fi
`,
		preRemove: `if [ "$1" -eq 0 ]; then disable; before_remove "sh $kept/purge"; fi
`,
		postRemove: `if [ "$1" -eq 0 ]; then after_remove; fi
`,
	},
	"apk": {
		postInstall: "after_install\n",
		postUpgrade: "after_upgrade\n",
		preRemove:   "disable\nbefore_remove \"sh $kept/purge\"\n",
		postRemove:  "after_remove\n",
	},
}

// scripts are the commands of the maintainer scripts of a package, after the functions that all of them share.
// postUpgrade is for a format that has a separate script for it.
type scripts struct{ postInstall, postUpgrade, preRemove, postRemove string }

// scriptText returns a maintainer script: the shared functions, and the commands of the format.
func scriptText(commands string) []byte {
	return append(embeddedFile("functions.sh"), ("\n" + commands)...)
}

// writePackages writes the packages for an architecture of Linux. A package depends on no other package, because the
// program is static and the scripts use only what each of the systems has.
func writePackages(out string, o options, arch string, contents []file) error {
	staging, err := os.MkdirTemp(out, ".staging-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(staging)
	for format, s := range packageFormats {
		info, err := packageInfo(filepath.Join(staging, format), format, o, arch, contents, s)
		if err != nil {
			return err
		}
		packager, err := nfpm.Get(format)
		if err != nil {
			return err
		}
		path := filepath.Join(out, packager.ConventionalFileName(info))
		if err := writeFile(path, func(w io.Writer) error { return packager.Package(info, w) }); err != nil {
			return fmt.Errorf("package %s: %w", filepath.Base(path), err)
		}
	}
	return nil
}

// packageInfo describes a package, and writes its files and scripts into the directory staging.
func packageInfo(staging, format string, o options, arch string, contents []file, s scripts) (*nfpm.Info, error) {
	if err := os.Mkdir(staging, 0o755); err != nil {
		return nil, err
	}
	count := 0
	stage := func(content []byte) (string, error) {
		path := filepath.Join(staging, fmt.Sprint(count))
		count++
		// A package of Alpine has the times of the script files.
		return path, errors.Join(os.WriteFile(path, content, 0o644), os.Chtimes(path, o.time, o.time))
	}
	_, prerelease, _ := strings.Cut(o.version, "-")
	info := &nfpm.Info{
		Name: "nomad-lite", Arch: arch, Platform: "linux", Version: o.version, Section: "admin", Priority: "optional", Maintainer: maintainer,
		Description: "run Nomad job files on one machine\nAn agent that runs HashiCorp Nomad job files on one machine, without servers.",
		Vendor:      "nomad-lite", Homepage: projectURL, License: licenceID, DisableGlobbing: true, MTime: o.time,
		Prerelease: strings.ReplaceAll(prerelease, ".", ""), // apk accepts 0.1.0_rc1, and not 0.1.0_rc.1
	}
	info.RPM.BuildHost, info.RPM.Summary = "localhost", "run Nomad job files on one machine"
	for _, f := range contents {
		if f.kind == debOnly && format != "deb" || f.kind == notDeb && format == "deb" {
			continue
		}
		c := &files.Content{Destination: "/" + f.path, FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode.Perm(), MTime: o.time}}
		switch {
		case f.mode.IsDir():
			c.Type = files.TypeDir
		case f.kind == configFile:
			c.Type = files.TypeConfigNoReplace
		}
		if !f.mode.IsDir() {
			var err error
			if c.Source, err = stage(f.content); err != nil {
				return nil, err
			}
		}
		info.Contents = append(info.Contents, c)
	}
	for _, script := range []struct {
		commands string
		path     *string
	}{
		{s.postInstall, &info.Scripts.PostInstall},
		{s.postUpgrade, &info.APK.Scripts.PostUpgrade},
		{s.preRemove, &info.Scripts.PreRemove},
		{s.postRemove, &info.Scripts.PostRemove},
	} {
		if script.commands == "" {
			continue
		}
		var err error
		if *script.path, err = stage(scriptText(script.commands)); err != nil {
			return nil, err
		}
	}
	return nfpm.WithDefaults(info), nil
}
