package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
)

// artifactSettings has the settings of the client's artifact block. The agent passes their values to the artifact hook
// under the same names.
var artifactSettings = map[string]settingSpec{
	// Timeout of a download by HTTP. [default: 30m]
	"http_read_timeout": artifactHookSetting(configItem.parseDuration),
	// Maximum size of a download by HTTP. [type: size; default: 100GB]
	"http_max_size": artifactHookSetting(configItem.parseByteSize),
	// Timeout of a download of a git repository. [default: 30m]
	"git_timeout": artifactHookSetting(configItem.parseDuration),
	// Timeout of a download of a Mercurial repository. [default: 30m]
	"hg_timeout": artifactHookSetting(configItem.parseDuration),
	// Timeout of a download from S3. [default: 30m]
	"s3_timeout": artifactHookSetting(configItem.parseDuration),
	// Maximum number of files in an archive. [default: 4096]
	"decompression_limit_file_count": artifactHookSetting(configItem.parseWholeNumber),
	// Maximum size of the content of an archive. [type: size; default: 100GB]
	"decompression_limit_size": artifactHookSetting(configItem.parseByteSize),
	// Maximum ratio of the size of the content to that of its archive, for content above 256 MiB. [default: 1000; not in Nomad]
	"decompression_limit_ratio": artifactHookSetting(configItem.parseWholeNumber),
	// Variables of the agent that downloads inherit, separated by commas. [type: string]
	"set_environment_variables": artifactHookSetting(configItem.parseCommaSeparatedNames),
	// Further paths that downloads can use, such as d:rx:/opt/tools and f:r:/etc/netrc.
	"filesystem_isolation_extra_paths": artifactHookSetting(configItem.parseFilesystemIsolationPaths),
	// Downloads see all files that their user can read.
	"disable_filesystem_isolation": artifactHookSetting(configItem.parseBoolean),

	// User ids that downloads have under an agent of root, and that nothing else may use. [default: 90000-99999,60706-61183; not in Nomad]
	"download_uids": artifactHookSetting(configItem.parseAndCheckDownloadUIDText),

	"disable_artifact_inspection": {ignoredReason: "what was downloaded is always looked through"},
	"gcs_timeout":                 {ignoredReason: "objects of Google are downloaded by https here"},
}

// DownloadUIDs returns the user ids that are reserved for downloads; no task may
// run as one of them.
func (c *Config) DownloadUIDs() idrange.Set {
	text, _ := c.ArtifactSettings["download_uids"].(string)
	set, _ := idrange.ParseDownloadUIDs(text) // cannot fail, because parseAndCheckDownloadUIDText has checked the text
	return set
}

func artifactHookSetting[T any](read func(configItem) (T, error)) settingSpec {
	return builtinHookSetting(func(c *Config) *map[string]any { return &c.ArtifactSettings }, read)
}

// builtinHookSetting returns a setting whose value is stored in the map field of the Config under the name of the setting. The agent
// passes the map to a builtin hook.
//
//go:noinline
func builtinHookSetting[T any](field func(*Config) *map[string]any, read func(configItem) (T, error)) settingSpec {
	return settingSpec{valueType: reflect.TypeFor[T](), setInConfig: func(c *Config, i configItem) error {
		v, err := read(i)
		if err != nil {
			return err
		}
		m := field(c)
		if *m == nil {
			*m = make(map[string]any)
		}
		(*m)[i.name] = v
		return nil
	}}
}

// parseWholeNumber returns the value of an item as a whole number that is not negative.
func (i configItem) parseWholeNumber() (int, error) {
	f, err := i.parseNumber()
	if err == nil && (f != float64(int64(f)) || f < 0 || f > maxSettingNumber) {
		err = fmt.Errorf("must be a whole number from 0 to %.0f", float64(maxSettingNumber))
	}
	return int(f), err
}

// parseByteSize parses a number of bytes, given as a number or as a text like "100GB" or "64MiB".
func (i configItem) parseByteSize() (int64, error) {
	text, err := i.parseScalarAsString()
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`^([0-9]+)\s*([kKMGT]?)(i?)B?$`).FindStringSubmatch(text)
	if m == nil {
		return 0, errors.New(`must be a size, such as "100GB"`)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	unit := int64(1000)
	if m[3] != "" {
		unit = 1024
	}
	for range 1 + strings.Index("KMGT", cmp.Or(strings.ToUpper(m[2]), "none")) {
		if n > (1<<62)/unit {
			return 0, errors.New("is larger than any disk")
		}
		n *= unit
	}
	return n, err
}

// parseCommaSeparatedNames parses a comma-separated list of names. It omits empty names.
func (i configItem) parseCommaSeparatedNames() ([]string, error) {
	text, err := i.parseScalarAsString()
	return splitCommaList(text), err
}

func (i configItem) parseFilesystemIsolationPaths() ([]string, error) {
	paths, err := i.parseStringList()
	extraPath := regexp.MustCompile(`^[fd]:[rwcx]+:/`)
	if err != nil || slices.ContainsFunc(paths, func(p string) bool { return !extraPath.MatchString(p) }) {
		return nil, errors.New(`must be a list of paths such as "d:rx:/opt/tools" and "f:r:/etc/netrc"`)
	}
	return paths, nil
}

// parseAndCheckDownloadUIDText checks only the syntax of the user ids. The artifact hook checks the ids again, because
// it has access to the accounts of the machine.
func (i configItem) parseAndCheckDownloadUIDText() (string, error) {
	text, err := i.parseScalarAsString()
	if err != nil {
		return "", err
	}
	_, err = idrange.ParseDownloadUIDs(text)
	return text, err
}
