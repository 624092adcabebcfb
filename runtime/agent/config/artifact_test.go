package config

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestArtifactBlock(t *testing.T) {
	const configText = `
client {
  artifact {
    http_read_timeout = "5m"
    http_max_size     = "2GB"
    git_timeout       = "90s"
    hg_timeout        = "91s"
    s3_timeout        = "92s"
    gcs_timeout       = "93s"

    decompression_limit_file_count = 10
    decompression_limit_size       = "64 MiB"
    decompression_limit_ratio      = 0

    set_environment_variables        = "A, B"
    filesystem_isolation_extra_paths = ["d:r:/srv/files", "f:rx:/opt/tool"]
    disable_filesystem_isolation     = true
    download_uids                    = "70000-70999"
  }
}`
	var c Config
	got := diagnosticLines(c.Parse("n.hcl", []byte(configText)))
	if want := []string{"n.hcl:9: client.artifact.gcs_timeout is ignored: objects of Google are downloaded by https here"}; !slices.Equal(got, want) {
		t.Errorf("warnings %q, want %q", got, want)
	}
	want := map[string]any{
		"http_read_timeout": 5 * time.Minute, "http_max_size": int64(2e9), "git_timeout": 90 * time.Second,
		"hg_timeout": 91 * time.Second, "s3_timeout": 92 * time.Second,
		"decompression_limit_file_count": 10, "decompression_limit_size": int64(64 << 20), "decompression_limit_ratio": 0,
		"disable_filesystem_isolation": true, "download_uids": "70000-70999",
	}
	if got := c.DownloadUIDs(); !got.Contains(70999) || got.Contains(90000) {
		t.Errorf("users of downloads are %v", got)
	}
	if got := new(Config).DownloadUIDs(); !got.Contains(90000) || got.Contains(70000) || got.Contains(80000) {
		t.Errorf("users of downloads are %v without a setting", got)
	}
	for uids, want := range map[string]string{
		"nobody": `"nobody" is neither an id`, "500-2000": "the accounts of the system", "65000-66000": "nobody, as which tasks run",
		"89999-90010": "the users that Nomad makes for tasks", ",": "names no user id",
	} {
		err := new(Config).Parse("n.hcl", []byte("client { artifact { download_uids = \""+uids+"\" } }"))
		if err == nil || !strings.Contains(err.Error(), "download_uids") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", uids, err, want)
		}
	}
	for name, words := range map[string][]string{
		"set_environment_variables":        {"A", "B"},
		"filesystem_isolation_extra_paths": {"d:r:/srv/files", "f:rx:/opt/tool"},
	} {
		if got, _ := c.ArtifactSettings[name].([]string); !slices.Equal(got, words) {
			t.Errorf("%s is %v, want %v", name, c.ArtifactSettings[name], words)
		}
		delete(c.ArtifactSettings, name)
	}
	if !maps.Equal(c.ArtifactSettings, want) {
		t.Errorf("read %v\nwant %v", c.ArtifactSettings, want)
	}
}

func TestParseSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "12": 12, "5B": 5, "1k": 1e3, "1kB": 1e3, "1KiB": 1 << 10, "3MB": 3e6, "2GiB": 2 << 30, "100GB": 100e9, "1T": 1e12,
	} {
		if got, err := (configItem{scalarOrListValue: text}).parseByteSize(); err != nil || got != want {
			t.Errorf("%s is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "GB", "-1", "1.5GB", "1PB", "10000000T", "9999999999999999999"} {
		if got, err := (configItem{scalarOrListValue: text}).parseByteSize(); err == nil {
			t.Errorf("%q is %d, want an error", text, got)
		}
	}
}
