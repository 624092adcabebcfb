package artifact

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// parsedSource is the parsed source of an artifact, including the options of the
// artifact block.
type parsedSource struct {
	sourceType string   // "http", "s3", "git", "hg" or "file"
	url        *url.URL // the URL without subpath and options
	subpath    string   // requested path in the archive or repository; "" means the whole content

	checksum       string
	archiveOption  string // archive format; "" means that the file name decides, "false" means no archive
	fileNameOption string
	revision       string // revision of a repository; "" means the default
	cloneDepth     string
	sshKeyBase64   string    // private key in base64
	s3             *s3Source // nil if the source is not of type s3
}

// isRepository reports whether a program clones the source.
func (s *parsedSource) isRepository() bool { return s.sourceType == "git" || s.sourceType == "hg" }

var (
	getterPrefixPattern = lazyRegexp(`^([A-Za-z0-9]+)::(.+)$`)
	scpAddressPattern   = lazyRegexp(`^([A-Za-z0-9_.-]+@[A-Za-z0-9_][A-Za-z0-9_.-]*):([^/].*)$`)

	// repositoryHosts are the hosts for which a source without a scheme is a git
	// repository.
	repositoryHosts = []string{"github.com", "gitlab.com", "bitbucket.org"}
)

// lazyRegexp compiles a regular expression on first use, so that other processes of this program,
// which do not download, save the memory.
func lazyRegexp(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// parseSource parses the source of an artifact: a URL, a URL with a prefix such as git::, an
// scp-like address, or the path of a repository on a well-known host.
func parseSource(text string, options map[string]string) (*parsedSource, error) {
	getter := ""
	if m := getterPrefixPattern().FindStringSubmatch(text); m != nil {
		getter, text = strings.ToLower(m[1]), m[2]
	}
	if m := scpAddressPattern().FindStringSubmatch(text); m != nil && !strings.Contains(text, "://") {
		text = "ssh://" + m[1] + "/" + m[2]
		if getter == "" {
			getter = "git"
		}
	}
	if repository, ok := expandRepositoryPathToURL(text); ok {
		text, getter = repository, "git"
	}
	if host, _, _ := strings.Cut(text, "/"); getter == "s3" || getter == "" {
		if _, _, ok := parseAmazonS3Host(host); ok {
			text, getter = "https://"+text, "s3"
		}
	}
	if !strings.Contains(text, "://") {
		text = "file://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, invalidURLError(text, err)
	}
	s := &parsedSource{url: u}
	switch scheme := strings.ToLower(u.Scheme); {
	case getter == "git" && slices.Contains(gitProtocols, scheme):
		s.sourceType = "git"
	case getter == "hg" && slices.Contains(hgProtocols, scheme):
		s.sourceType = "hg"
	case getter == "s3" && (scheme == "http" || scheme == "https"), getter == "" && isUnsignedAmazonS3URL(u):
		s.sourceType = "s3"
	case getter == "" && (scheme == "http" || scheme == "https"), getter == "http" || getter == "https":
		s.sourceType = "http"
	case getter == "" && scheme == "file", getter == "file":
		s.sourceType = "file"
	case getter == "git":
		return nil, fmt.Errorf("download not supported for scheme '%s' by git: there are %s", scheme, strings.Join(gitProtocols, ", "))
	case getter == "hg":
		return nil, fmt.Errorf("download not supported for scheme '%s' by hg: there are %s", scheme, strings.Join(hgProtocols, ", "))
	case getter == "s3":
		return nil, fmt.Errorf("download not supported for scheme '%s' by s3: there are http, https", scheme)
	case getter == "":
		return nil, unsupportedSchemeError(scheme)
	default:
		return nil, unsupportedSchemeError(getter)
	}
	if strings.HasPrefix(u.Host, "-") || strings.HasPrefix(u.User.Username(), "-") {
		return nil, fmt.Errorf("the host %q begins with a dash", u.Host)
	}
	root := ""
	if s.sourceType == "hg" && u.Scheme == "ssh" && strings.HasPrefix(u.Path, "//") {
		root = "/" // hg writes an absolute path of the server as ssh://host//path
	}
	if before, sub, ok := strings.Cut(u.Path[len(root):], "//"); ok && s.sourceType != "file" {
		u.Path, u.RawPath = root+before, ""
		s.subpath = path.Clean(strings.Trim(sub, "/"))
		if !staysInDir(s.subpath) {
			return nil, fmt.Errorf("the part %q of the source leads out of it", sub)
		}
	}
	return s, s.mergeAndExtractOptions(options)
}

// hasChecksumFile reports whether the checksum must be looked up in a file of
// checksums.
func (s *parsedSource) hasChecksumFile() bool {
	return strings.HasPrefix(s.checksum, checksumFilePrefix)
}

// checksumFilePrefix is the prefix of a checksum option that is the source of a
// file of checksums.
const checksumFilePrefix = "file:"

// invalidURLError returns an error for an invalid URL, without its password.
func invalidURLError(text string, err error) error {
	if _, from, ok := strings.Cut(text, "${"); ok {
		if name, _, ok := strings.Cut(from, "}"); ok {
			return fmt.Errorf("the source is no URL: nothing is known by the name ${%s}", name)
		}
	}
	if strings.Contains(text, "@") {
		return errors.New("the source is no URL: what is special in a name or a password is written as in %2F, and a port is a number")
	}
	return fmt.Errorf("the source is no URL: %w", removeURLFromError(err))
}

// schemeHints are hints for errors, by URL scheme: for schemes that only Nomad
// supports, and for sources that look like a path.
var schemeHints = map[string]string{
	"file": "begin the source with https://, or let the operator list the path in filesystem_isolation_extra_paths of the client's artifact block",
	"gcs":  "take the object's https URL, https://storage.googleapis.com/bucket/object, with a signed query if it is not public",
	"ssh":  "put git:: before it",
}

// unsupportedSchemeError returns the error for an unsupported URL scheme. Its text starts
// with the text of Nomad's error.
func unsupportedSchemeError(scheme string) error {
	err := fmt.Errorf("download not supported for scheme '%s'", scheme)
	if way := schemeHints[scheme]; way != "" {
		return fmt.Errorf("%w: %s", err, way)
	}
	return fmt.Errorf("%w: there are http, https, s3, git and hg", err)
}

// expandRepositoryPathToURL expands host/owner/repository[/part] to a URL.
func expandRepositoryPathToURL(text string) (string, bool) {
	rest, query, _ := strings.Cut(text, "?")
	parts := strings.SplitN(rest, "/", 4)
	if len(parts) < 3 || !slices.Contains(repositoryHosts, parts[0]) {
		return "", false
	}
	full := "https://" + strings.Join(parts[:3], "/")
	if !strings.HasSuffix(full, ".git") {
		full += ".git"
	}
	if len(parts) > 3 {
		full += "//" + strings.TrimPrefix(parts[3], "/")
	}
	if query != "" {
		full += "?" + query
	}
	return full, true
}

// mergeAndExtractOptions merges the options of the artifact block into the query of the URL, stores the
// options that are for the download in s, and removes them from the query.
func (s *parsedSource) mergeAndExtractOptions(options map[string]string) error {
	q, err := url.ParseQuery(s.url.RawQuery)
	if err != nil {
		return fmt.Errorf("the query of the source: %w", err)
	}
	before := maps.Clone(q)
	for name, value := range options {
		q.Set(name, value)
	}
	ours := map[string]*string{"checksum": &s.checksum, "archive": &s.archiveOption, "filename": &s.fileNameOption}
	s3Options := map[string]string{}
	switch s.sourceType {
	case "git":
		ours = map[string]*string{"checksum": &s.checksum, "archive": &s.archiveOption, "ref": &s.revision, "depth": &s.cloneDepth, "sshkey": &s.sshKeyBase64}
	case "hg":
		ours = map[string]*string{"checksum": &s.checksum, "archive": &s.archiveOption, "rev": &s.revision, "sshkey": &s.sshKeyBase64}
	case "s3":
		for _, name := range s3OptionNames {
			s3Options[name] = q.Get(name)
			q.Del(name)
		}
	}
	for name, to := range ours {
		*to = q.Get(name)
		q.Del(name)
	}
	// An unchanged query is sent in its original form, because a server may have
	// signed it.
	if !maps.EqualFunc(before, q, slices.Equal) {
		s.url.RawQuery = q.Encode()
	}
	if s.sourceType == "s3" {
		s.s3, err = parseS3Source(s.url, s3Options)
	}
	return err
}

// fileName returns the name of the downloaded file: the value of the option
// filename, else the last part of the path.
func (s *parsedSource) fileName() (string, error) {
	name := path.Base(s.url.Path)
	if s.fileNameOption != "" {
		name = s.fileNameOption
	}
	if !staysInDir(name) || name == "." || strings.Contains(name, "/") || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("the source names no file: end it with one, or set the option filename")
	}
	return name, nil
}
