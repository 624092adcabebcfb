package catalog

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// DriverPrefix is an optional prefix of the driver name in the name of a plugin file.
const DriverPrefix = "nomad-driver-"

// DefaultBuiltinVersion is the version of Nomad's own builtin drivers. An
// external plugin of a lower version does not replace a builtin.
const DefaultBuiltinVersion = "0.1.0"

// builtinArgv0 is the name of a builtin plugin's process in the process list.
const builtinArgv0 = "nomad-lite"

// Builtin is a plugin that this binary serves itself.
type Builtin struct {
	Name    string
	Type    base.Type // zero means base.TypeDriver
	Args    []string  // arguments of the process after argv[0]; nil means "plugin serve NAME"
	Version string    // the version that the plugin reports; "" means DefaultBuiltinVersion

	// ConfigWithoutBlock is the configuration of the plugin if no plugin block has a config block.
	ConfigWithoutBlock map[string]any

	// OptionDefaults are added to the configuration, which is ConfigWithoutBlock or comes from a plugin block. An
	// option that the configuration sets keeps the value of the configuration.
	OptionDefaults map[string]any

	// StopsAfterFingerprint means that the process is stopped soon after the first fingerprint, and runs again when a task
	// needs it. Without it an unused process runs for a minute.
	StopsAfterFingerprint bool

	// NodeReadyWithoutFingerprint means that a node is ready without the first fingerprint.
	NodeReadyWithoutFingerprint bool

	// PredictFingerprint returns the first fingerprint of the driver's process with the options of the plugin's configuration. It
	// returns false if only the process can find out. Nil means false. A node is ready with this fingerprint, while the process
	// starts.
	PredictFingerprint func(options map[string]any) (driver.Fingerprint, bool)

	// TasksAreHostProcesses means that the tasks of the driver are processes of this machine, so that an agent can end them without
	// the driver. Containers need their engine.
	TasksAreHostProcesses bool

	// ChildrenAreNeverTasks means that no child of the process is a task, so that an agent that shuts down can stop the
	// process.
	ChildrenAreNeverTasks bool

	// NotStartedReason is the reason why the driver has no entry in the catalog, and is not started; "" means that it
	// has one.
	NotStartedReason string
}

// Config is the argument of New: the builtins, the plugin directory and the plugin blocks.
type Config struct {
	Builtins []Builtin

	// PluginDir is the plugin directory; "" means no external plugins. New resolves a relative
	// path against the current working directory.
	PluginDir string

	// Blocks are the plugin blocks of the configuration, in their order. Of two blocks
	// with one name the later block wins, field by field.
	Blocks []PluginBlock

	// RequestedNames are the names of the drivers and hooks of one job. If it is set, the catalog
	// holds the builtins of these names, the files that a block names, and the files of
	// these names, with DriverPrefix or without. Nil means all builtins, and only files
	// that a block names.
	RequestedNames []string

	Logger hclog.Logger // nil means no logging
}

// Catalog is the set of plugins that may be started. It is immutable.
type Catalog struct {
	entries                  []Entry
	notStartedReasonByDriver map[string]string
}

// Entry is one plugin that may be started, or one requested plugin that may not.
type Entry struct {
	Name    string       // name of the builtin, or name of the file without .exe
	Path    string       // path of the file, for messages; "" for a builtin
	Args    []string     // arguments after argv[0]
	Builtin bool         // the plugin is served by this binary
	Type    base.Type    // type of a builtin; base.TypeUnknown for an external plugin, which reports its type when it runs
	Version string       // version of a builtin; "" for an external plugin
	Block   *PluginBlock // merged plugin block of the plugin; nil if it has no block and no default configuration

	StopsAfterFingerprint       bool // the field StopsAfterFingerprint of the Builtin; false for an external plugin
	TasksAreHostProcesses       bool // the field TasksAreHostProcesses of the Builtin; false for an external plugin
	ChildrenAreNeverTasks       bool // the field ChildrenAreNeverTasks of the Builtin; false for an external plugin
	NodeReadyWithoutFingerprint bool // the field NodeReadyWithoutFingerprint of the Builtin; false for an external plugin

	// PredictFingerprint returns the result of the Builtin's PredictFingerprint for the options in Block; nil if the Builtin has
	// none, and for an external plugin.
	PredictFingerprint func() (driver.Fingerprint, bool)

	// ProgramID identifies the file and how it is started. It is zero for a builtin, and if
	// there is no file.
	ProgramID ProgramID

	// Err is the reason why the plugin must not be started, if New has found one. Open finds further reasons.
	Err error

	pluginDir string // absolute path of the plugin directory; "" for a builtin
	fileName  string // name of the file in pluginDir
}

// ProgramID identifies the file of a plugin and how the file is started. A plugin with another
// ProgramID may describe itself differently.
type ProgramID struct {
	File              FileStat
	ArgsAndConfigHash string // hash of the arguments and the configuration, in hex
}

// FileStat is the part of a file's metadata that changes when the content changes. Other
// packages store it: a renamed field is lost in their records.
type FileStat struct {
	Device, Inode uint64
	Size          int64
	ModTime       int64 // nanoseconds since 1970
	ChangeTime    int64 // nanoseconds since 1970; no user can set it back
}

func fileStat(info fs.FileInfo) FileStat {
	stat := info.Sys().(*syscall.Stat_t)
	return FileStat{Device: stat.Dev, Inode: stat.Ino, Size: stat.Size, ModTime: stat.Mtim.Nano(), ChangeTime: stat.Ctim.Nano()}
}

// ExpectedDriverName is the expected name of the driver or hook in the plugin. The name that
// the plugin itself reports takes precedence.
func (e Entry) ExpectedDriverName() string {
	if e.Builtin {
		return e.Name
	}
	return strings.TrimPrefix(e.Name, DriverPrefix)
}

// Compare orders entries by name, and puts a builtin before an external plugin of the same
// name. If two plugins serve one driver and their versions are equal, the later entry is
// used.
func (e *Entry) Compare(other *Entry) int {
	return cmp.Or(strings.Compare(e.Name, other.Name), strings.Compare(e.Path, other.Path))
}

// SameID reports whether two entries, possibly of two catalogs, have the same name and file.
func (e Entry) SameID(other Entry) bool {
	return e.Builtin == other.Builtin && e.Name == other.Name && e.Path == other.Path
}

// Equal reports whether two entries have the same name and file (see SameID) and start the plugin in the same way.
func (e Entry) Equal(other Entry) bool {
	options := func(e Entry) PluginBlock {
		if e.Block == nil {
			return PluginBlock{}
		}
		// Name and Range are omitted: the position of the block in the configuration makes
		// no difference.
		return PluginBlock{Config: e.Block.Config, EnvAllowlist: e.Block.EnvAllowlist, SHA256: e.Block.SHA256}
	}
	return e.SameID(other) && e.ProgramID == other.ProgramID && slices.Equal(e.Args, other.Args) &&
		reflect.DeepEqual(options(e), options(other)) && fmt.Sprint(e.Err) == fmt.Sprint(other.Err)
}

// String names the plugin in errors and logs.
func (e Entry) String() string {
	if e.Builtin || e.Path == "" {
		return fmt.Sprintf("plugin %q", e.Name)
	}
	return fmt.Sprintf("plugin %q (%s)", e.Name, e.Path)
}

// New enumerates the plugins. A problem of one plugin is stored in its Entry; New
// returns an error only for an invalid configuration.
func New(cfg Config) (*Catalog, error) {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	blocks, order, err := mergeBlocks(cfg.Blocks)
	if err != nil {
		return nil, err
	}
	builtins, err := validateBuiltinNames(cfg.Builtins)
	if err != nil {
		return nil, err
	}
	if cfg.PluginDir != "" {
		// The path is absolute because a script is executed by its path, and the working
		// directory may change.
		if cfg.PluginDir, err = filepath.Abs(cfg.PluginDir); err != nil {
			return nil, fmt.Errorf("plugin directory: %w", err)
		}
	}

	c := &Catalog{notStartedReasonByDriver: make(map[string]string)}
	used := make(map[string]bool) // names of plugin blocks for which an entry was made
	for _, f := range scanPluginDir(cfg.PluginDir, cfg.Logger) {
		block := blocks[f.pluginName]
		if block == nil && !cfg.shouldStartWithoutBlock(f, builtins) {
			continue
		}
		used[f.pluginName] = true
		e := Entry{Name: f.pluginName, Path: f.path, Block: block, pluginDir: cfg.PluginDir, fileName: f.fileName, Err: f.refuseReason}
		if block != nil {
			e.Args = block.Args
		}
		if e.ProgramID, err = e.newProgramID(f.fileInfo); err != nil {
			return nil, err
		}
		c.entries = append(c.entries, e)
	}
	for _, b := range cfg.Builtins {
		if b.NotStartedReason != "" {
			c.notStartedReasonByDriver[b.Name] = b.NotStartedReason
			continue
		}
		block := blocks[b.Name]
		if block != nil && !used[b.Name] {
			used[b.Name] = true
			if len(block.Args) > 0 {
				cfg.Logger.Warn("args in the plugin block of a builtin are ignored", "plugin", b.Name, "config", block.Range.String())
			}
		}
		if cfg.RequestedNames == nil || slices.Contains(cfg.RequestedNames, b.Name) {
			c.entries = append(c.entries, b.newEntry(block))
		}
	}
	for _, name := range order {
		if !used[name] {
			c.entries = append(c.entries, blocks[name].entryWithMissingFileErr(cfg.PluginDir))
		}
	}
	sort.SliceStable(c.entries, func(i, j int) bool { return c.entries[i].Compare(&c.entries[j]) < 0 })
	return c, nil
}

// validateBuiltinNames returns the set of the names, or an error if a name is invalid or not unique.
func validateBuiltinNames(builtins []Builtin) (map[string]bool, error) {
	names := make(map[string]bool)
	for _, b := range builtins {
		switch {
		case !base.ValidName(b.Name):
			return nil, fmt.Errorf("builtin plugin %q: not a valid name", b.Name)
		case names[b.Name]:
			return nil, fmt.Errorf("builtin plugin %q: named twice", b.Name)
		}
		names[b.Name] = true
	}
	return names, nil
}

// entryWithMissingFileErr returns the entry of a plugin that has a block but no file and no builtin.
func (b *PluginBlock) entryWithMissingFileErr(pluginDir string) Entry {
	where := "no plugin directory is given: name the directory of its program with -plugin-dir, or with plugin_dir in the configuration"
	if pluginDir != "" {
		where = "no such file in " + pluginDir
	}
	return Entry{Name: b.Name, Block: b, Err: fmt.Errorf("named at %s: %s", b.Range, where)}
}

// shouldStartWithoutBlock reports whether a file without a plugin block is started.
func (c *Config) shouldStartWithoutBlock(f scannedFile, isBuiltinName map[string]bool) bool {
	bare := strings.TrimPrefix(f.pluginName, DriverPrefix)
	switch {
	case !slices.Contains(c.RequestedNames, f.pluginName) && !slices.Contains(c.RequestedNames, bare):
		c.Logger.Debug("plugin file is not named by a plugin block, not started", "plugin", f.pluginName, "path", f.path)
		return false
	case isBuiltinName[bare]:
		// A job must not be able to choose a file over a builtin.
		c.Logger.Info("plugin file has the name of a builtin and no plugin block, the builtin is used", "plugin", f.pluginName, "path", f.path)
		return false
	}
	return true
}

// newEntry returns the entry of a builtin. block is its plugin block, or nil.
func (b Builtin) newEntry(block *PluginBlock) Entry {
	e := Entry{
		Name: b.Name, Args: b.Args, Builtin: true, Type: b.Type, Version: cmp.Or(b.Version, DefaultBuiltinVersion), Block: block,
		StopsAfterFingerprint: b.StopsAfterFingerprint, NodeReadyWithoutFingerprint: b.NodeReadyWithoutFingerprint, ChildrenAreNeverTasks: b.ChildrenAreNeverTasks, TasksAreHostProcesses: b.TasksAreHostProcesses,
	}
	if e.Type == base.TypeUnknown {
		e.Type = base.TypeDriver
	}
	if e.Args == nil {
		e.Args = []string{"plugin", "serve", b.Name}
	}
	own := b.ConfigWithoutBlock
	if block != nil && block.Config != nil {
		own = block.Config
	}
	if b.OptionDefaults != nil {
		options := maps.Clone(b.OptionDefaults)
		maps.Copy(options, own)
		own = options
	}
	if own != nil {
		merged := PluginBlock{Name: b.Name}
		if block != nil {
			merged = *block
		}
		merged.Config = own
		e.Block = &merged
	}
	if b.PredictFingerprint != nil {
		e.PredictFingerprint = func() (driver.Fingerprint, bool) { return b.PredictFingerprint(own) }
	}
	return e
}

// Entries returns the plugins ordered by name. If an external plugin and a builtin have
// the same name, the builtin comes first.
func (c *Catalog) Entries() []Entry { return slices.Clone(c.entries) }

// NotStartedReasonByDriver returns the builtin drivers without an entry, with the reasons.
func (c *Catalog) NotStartedReasonByDriver() map[string]string {
	return maps.Clone(c.notStartedReasonByDriver)
}

// mergeBlocks merges the plugin blocks of each name into one block. namesInOrder has the names in the order of their
// first blocks.
func mergeBlocks(blocks []PluginBlock) (byName map[string]*PluginBlock, namesInOrder []string, err error) {
	byName = map[string]*PluginBlock{}
	for _, b := range blocks {
		if !base.ValidName(b.Name) {
			return nil, nil, fmt.Errorf("%s: plugin %q: a plugin name has letters, digits, dots, dashes and underscores, and begins with a letter or digit", b.Range, b.Name)
		}
		old := byName[b.Name]
		if old == nil {
			namesInOrder = append(namesInOrder, b.Name)
			byName[b.Name] = &b
			continue
		}
		merged := *old
		merged.Range = b.Range
		if len(b.Args) > 0 {
			merged.Args = b.Args
		}
		if len(b.Config) > 0 {
			merged.Config = b.Config
		}
		if b.EnvAllowlist != nil {
			merged.EnvAllowlist = b.EnvAllowlist
		}
		if b.SHA256 != "" {
			merged.SHA256 = b.SHA256
		}
		byName[b.Name] = &merged
	}
	return byName, namesInOrder, nil
}

// builtinEnv are the variables of the agent's environment that a builtin plugin
// inherits: variables for finding programs and files, for the user's language, for network access, and for
// finding the engine of the driver docker.
var builtinEnv = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "XDG_*", "LANG", "LANGUAGE", "LC_*", "TZ",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR",
	"DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_API_VERSION",
	"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GORACE", "GOTRACEBACK", "GOCOVERDIR",
	"NOMAD_LITE_PLUGIN_*",
}

// InheritedEnvPatterns returns the variables of the agent that the plugin inherits, in the format
// of [PluginBlock].EnvAllowlist. Nil means all except the variables that no plugin inherits.
func (e Entry) InheritedEnvPatterns() []string {
	switch {
	case e.Block != nil && e.Block.EnvAllowlist != nil:
		return e.Block.EnvAllowlist
	case e.Builtin:
		return builtinEnv
	}
	return nil
}

// newProgramID returns the ProgramID of an entry with the given file; without a file (nil) it is zero. newProgramID
// does not read the content of the file: plugins are large, and a change of the content changes the ctime.
func (e Entry) newProgramID(file fs.FileInfo) (ProgramID, error) {
	if file == nil {
		return ProgramID{}, nil
	}
	settings := struct {
		Args   []string
		Config map[string]any
	}{Args: e.Args}
	if e.Block != nil {
		settings.Config = e.Block.Config
	}
	b, err := json.Marshal(settings)
	if err != nil {
		return ProgramID{}, fmt.Errorf("%s: %w", e, err)
	}
	sum := sha256.Sum256(b)
	return ProgramID{File: fileStat(file), ArgsAndConfigHash: hex.EncodeToString(sum[:])}, nil
}

// scannedFile is one file of the plugin directory.
type scannedFile struct {
	pluginName   string // name of the file without .exe
	fileName     string
	path         string      // pluginDir with fileName
	fileInfo     fs.FileInfo // nil if stat has failed
	refuseReason error       // reason why the file must not be started
}

// scanPluginDir lists the files in pluginDir that could be plugins. It logs problems of the directory,
// and sets refuseReason for each file that must not be started.
func scanPluginDir(pluginDir string, logger hclog.Logger) []scannedFile {
	if pluginDir == "" {
		return nil
	}
	root, err := os.OpenRoot(pluginDir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			logger.Warn("plugin directory does not exist, no external plugins", "dir", pluginDir)
		} else {
			logger.Error("plugin directory cannot be opened, no external plugins", "dir", pluginDir, "error", err)
		}
		return nil
	}
	defer root.Close()

	list, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		logger.Error("plugin directory cannot be read", "dir", pluginDir, "error", err)
	}
	dirErr := checkPluginDirPermissions(root, pluginDir, logger)
	if dirErr != nil {
		logger.Error("plugin directory is not safe, its plugins are refused", "error", dirErr)
	}

	var out []scannedFile
	for _, de := range list {
		f := scannedFile{fileName: de.Name(), path: filepath.Join(pluginDir, de.Name()), refuseReason: dirErr}
		f.pluginName = strings.TrimSuffix(f.fileName, ".exe")
		if !base.ValidName(f.pluginName) {
			if strings.HasPrefix(f.pluginName, ".") {
				continue // hidden files are never plugins
			}
			logger.Warn("file in the plugin directory has a name that no plugin can have, skipped", "path", f.path)
			continue
		}
		info, err := root.Stat(f.fileName)
		switch {
		case err != nil:
			if f.refuseReason == nil {
				f.refuseReason = explainStatError(root, f.fileName, err)
			}
		case info.IsDir():
			logger.Debug("sub-directory in the plugin directory, skipped", "path", f.path)
			continue
		case info.Mode()&0o111 == 0:
			if f.refuseReason == nil {
				f.refuseReason = fmt.Errorf("not executable (mode %04o); chmod +x makes it so", info.Mode().Perm())
			}
		}
		f.fileInfo = info
		out = append(out, f)
	}
	return out
}

// explainStatError describes a link to a missing target, or to a target outside of root.
func explainStatError(root *os.Root, file string, err error) error {
	target, linkErr := root.Readlink(file)
	if linkErr != nil {
		return err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the link leads to %s, which does not exist", target)
	}
	return fmt.Errorf("the link leads out of the plugin directory, to %s", target)
}
