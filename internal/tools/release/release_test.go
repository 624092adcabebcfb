package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/tools/site/docpages"
)

// testTexts are texts of a release for tests that build no program.
var testTexts = texts{
	readme: []byte("readme"), licence: []byte("licence"), changelog: []byte("changelog"), installNotes: []byte("install"),
	manPages:    map[string][]byte{"nomad-lite.1": []byte(".TH"), "nomad-lite-job.1": []byte(".TH")},
	completions: map[string][]byte{"bash": []byte("b"), "zsh": []byte("z"), "fish": []byte("f")},
	unit:        []byte("ExecStart=" + programPlaceholder + " agent\n"), agentConfig: embeddedFile("agent.hcl"), purge: embeddedFile("purge.sh"),
}

func testOptions() options {
	return options{version: "0.1.0", revision: "0123456789ab", time: time.Unix(1790000000, 0).UTC()}
}

// entry is a file of a package: its mode, size and content.
type entry struct {
	mode    int64
	content string
}

func TestPackagesHaveTheSameContents(t *testing.T) {
	out := t.TempDir()
	if err := writePackages(out, testOptions(), "arm64", packageFiles(testTexts, []byte("program"))); err != nil {
		t.Fatal(err)
	}
	deb := readDeb(t, filepath.Join(out, "nomad-lite_0.1.0_arm64.deb"))
	rpm := readRPM(t, filepath.Join(out, "nomad-lite-0.1.0-1.aarch64.rpm"))
	apk := readAPK(t, filepath.Join(out, "nomad-lite_0.1.0_aarch64.apk"))
	// The completion of zsh is in the directory of the distribution.
	const debCompletion, otherCompletion = "usr/share/zsh/vendor-completions/_nomad-lite", "usr/share/zsh/site-functions/_nomad-lite"
	for format, p := range map[string]unpacked{"rpm": rpm, "apk": apk} {
		p.files[debCompletion] = p.files[otherCompletion]
		delete(p.files, otherCompletion)
		if !maps.Equal(p.files, deb.files) {
			t.Errorf("%s has the files %v, and the deb %v", format, slices.Sorted(maps.Keys(p.files)), slices.Sorted(maps.Keys(deb.files)))
		}
	}
	for name, want := range map[string]entry{
		"usr/bin/nomad-lite":                        {0o755, "program"},
		"usr/lib/nomad-lite/purge":                  {0o755, string(testTexts.purge)},
		"etc/nomad-lite.d/agent.hcl":                {0o644, string(testTexts.agentConfig)},
		"usr/lib/systemd/system/nomad-lite.service": {0o644, "ExecStart=/usr/bin/nomad-lite agent\n"},
		debCompletion:                               {0o644, "z"},
	} {
		if deb.files[name] != want {
			t.Errorf("%s: %+v, want %+v", name, deb.files[name], want)
		}
	}
	slices.Sort(rpm.directories)
	if want := []string{"etc/nomad-lite.d", "usr/lib/nomad-lite", "usr/share/doc/nomad-lite"}; !slices.Equal(rpm.directories, want) {
		t.Errorf("the rpm has the directories %q, want %q", rpm.directories, want)
	}
	if deb.scripts["conffiles"] != "/etc/nomad-lite.d/agent.hcl\n" {
		t.Errorf("conffiles %q", deb.scripts["conffiles"])
	}
	for format, p := range map[string]unpacked{"deb": deb, "rpm": rpm, "apk": apk} {
		if len(p.depends) > 0 {
			t.Errorf("%s depends on %v, but a static program needs no package", format, p.depends)
		}
		s := packageFormats[format]
		names := map[string][4]string{
			"deb": {"postinst", "", "prerm", "postrm"}, "rpm": {"postin", "", "preun", "postun"}, "apk": {".post-install", ".post-upgrade", ".pre-deinstall", ".post-deinstall"},
		}[format]
		for i, commands := range []string{s.postInstall, s.postUpgrade, s.preRemove, s.postRemove} {
			if commands == "" {
				continue
			}
			text := p.scripts[names[i]]
			if text != string(scriptText(commands)) {
				t.Errorf("%s: script %s:\n%s", format, names[i], text)
			}
			if out, err := shellCheck(text); err != nil {
				t.Errorf("%s: script %s: %v\n%s", format, names[i], err, out)
			}
		}
	}
}

// Each package manager accepts the version of a prerelease, and orders it before the release.
func TestPrereleaseVersions(t *testing.T) {
	out := t.TempDir()
	o := testOptions()
	o.version = "0.1.0-rc.2"
	if err := writePackages(out, o, "amd64", packageFiles(testTexts, []byte("program"))); err != nil {
		t.Fatal(err)
	}
	apk := readAPK(t, filepath.Join(out, "nomad-lite_0.1.0_rc2_x86_64.apk"))
	if info := apk.scripts[".PKGINFO"]; !strings.Contains(info, "\npkgver = 0.1.0_rc2\n") {
		t.Errorf("apk: %s", info)
	}
	deb := readDeb(t, filepath.Join(out, "nomad-lite_0.1.0~rc2_amd64.deb"))
	if control := deb.scripts["control"]; !strings.Contains(control, "\nVersion: 0.1.0~rc2\n") {
		t.Errorf("deb: %s", control)
	}
	if _, err := os.Stat(filepath.Join(out, "nomad-lite-0.1.0~rc2-1.x86_64.rpm")); err != nil {
		t.Error(err)
	}
}

// shellCheck lets the shell parse a script, without its execution.
func shellCheck(text string) ([]byte, error) {
	cmd := exec.Command("sh", "-n")
	cmd.Stdin = strings.NewReader(text)
	return cmd.CombinedOutput()
}

// Two calls write the same bytes, with other directories and at another time.
func TestFilesAreReproducible(t *testing.T) {
	var sums [2]string
	for i := range sums {
		out := t.TempDir()
		o := testOptions()
		if err := writePackages(out, o, "amd64", packageFiles(testTexts, []byte("program"))); err != nil {
			t.Fatal(err)
		}
		if err := writeImage(filepath.Join(out, "image.tar"), o, "amd64", testTexts, []byte("program")); err != nil {
			t.Fatal(err)
		}
		if err := writeTarGz(filepath.Join(out, "archive.tar.gz"), "root", archiveFiles(testTexts, []byte("program")), o.time); err != nil {
			t.Fatal(err)
		}
		if err := writeZip(filepath.Join(out, "archive.zip"), "root", clientFiles(testTexts, []byte("program"), "nomad-lite.exe"), o.time); err != nil {
			t.Fatal(err)
		}
		names, err := writeChecksums(out)
		if err != nil || len(names) != 7 {
			t.Fatalf("files %q and error %v", names, err)
		}
		content, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = string(content)
		time.Sleep(1100 * time.Millisecond) // formats store times in seconds
	}
	if sums[0] != sums[1] {
		t.Errorf("checksums differ:\n%s\n%s", sums[0], sums[1])
	}
}

func TestImageIsLoadable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := writeImage(path, testOptions(), "amd64", testTexts, []byte("program")); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	archive := readTar(t, bytes.NewReader(content))
	var manifests []imageManifest
	if err := json.Unmarshal([]byte(archive["manifest.json"].content), &manifests); err != nil || len(manifests) != 1 {
		t.Fatalf("manifest.json: %v, %v", manifests, err)
	}
	m := manifests[0]
	var c imageConfig
	if err := json.Unmarshal([]byte(archive[m.Config].content), &c); err != nil {
		t.Fatal(err)
	}
	layer := archive[m.Layers[0]].content
	if want := "sha256:" + sha256Hex([]byte(layer)); len(c.RootFS.DiffIDs) != 1 || c.RootFS.DiffIDs[0] != want {
		t.Errorf("layers %q, want %s", c.RootFS.DiffIDs, want)
	}
	if want := sha256Hex([]byte(archive[m.Config].content)) + ".json"; m.Config != want {
		t.Errorf("configuration %s, want %s", m.Config, want)
	}
	files := readTar(t, strings.NewReader(layer))
	if files["usr/bin/nomad-lite"] != (entry{0o755, "program"}) || files["tmp/"].mode != 0o1777 || files["var/lib/nomad-lite/"].mode != 0o700 {
		t.Errorf("files of the image: %v", files)
	}
}

// The archive of the site has its pages, with the version, in one folder.
func TestSiteArchive(t *testing.T) {
	o := testOptions()
	o.sourceDir = t.TempDir()
	if err := os.Mkdir(filepath.Join(o.sourceDir, "docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	const index = "# Index\n\n## By reader\n\n### Author\n\n## All pages\n\n### How-to\n\n- [Index](README.md)\n"
	if err := os.WriteFile(filepath.Join(o.sourceDir, "docs", "README.md"), []byte(index), 0o644); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if err := writeSite(o, out); err != nil {
		t.Fatal(err)
	}
	archive, err := os.Open(filepath.Join(out, "nomad-lite_0.1.0_docs.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	files := readTar(t, gunzip(t, archive))
	for _, name := range []string{"index.html", "site.css", "site.js", "search-index.js"} {
		if f := files["nomad-lite_0.1.0_docs/"+name]; f.mode != 0o644 || f.content == "" {
			t.Errorf("%s: mode %o and %d bytes", name, f.mode, len(f.content))
		}
	}
	if page := files["nomad-lite_0.1.0_docs/index.html"].content; !strings.Contains(page, "nomad-lite 0.1.0") {
		t.Errorf("the page has no version:\n%s", page)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	earlier, foreign := t.TempDir(), t.TempDir()
	if err := docpages.Write(filepath.Join(earlier, "site"), map[string][]byte{"search-index.js": []byte("x")}); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		filepath.Join(earlier, "install.sh"): "x", filepath.Join(earlier, sumsFile): "0123  install.sh\n",
		filepath.Join(foreign, "notes"): "x", filepath.Join(foreign, sumsFile): "0123  install.sh\n",
	} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	complete := func(change func(*options)) error {
		o := options{version: "0.1.0", sourceDir: t.TempDir(), revision: "0123456789ab", targets: []string{hostTarget()}}
		change(&o)
		return o.complete(t.Context())
	}
	for name, c := range map[string]struct {
		epoch  string
		change func(*options)
		want   string
	}{
		"complete":                 {"1790000000", func(*options) {}, ""},
		"no version":               {"1790000000", func(o *options) { o.version = "" }, "make release VERSION="},
		"version with a v":         {"1790000000", func(o *options) { o.version = "v0.1.0" }, "write it as 0.1.0"},
		"rc without a point":       {"1790000000", func(o *options) { o.version = "0.1.0-rc1" }, "write it as 0.1.0"},
		"earlier release and site": {"1790000000", func(o *options) { o.outDir = earlier }, ""},
		"foreign files":            {"1790000000", func(o *options) { o.outDir = foreign }, "notes is not a file of an earlier release"},
		"relative directory":       {"1790000000", func(o *options) { o.outDir = "dist" }, "write an absolute path"},
		"unknown target":           {"1790000000", func(o *options) { o.targets = []string{"plan9/386"} }, "choose from"},
		"without this system":      {"1790000000", func(o *options) { o.targets = []string{"windows/amd64"} }, "add the target"},
		"no time":                  {"", func(*options) {}, "set SOURCE_DATE_EPOCH"},
		"no number":                {"today", func(*options) {}, "in seconds since 1970"},
		"no repository":            {"1790000000", func(o *options) { o.revision = "" }, "need -revision"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SOURCE_DATE_EPOCH", c.epoch)
			err := complete(c.change)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
