package artifact

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// s3Source is the address of an object, or of all objects below a prefix, and
// the options for access to it.
type s3Source struct {
	endpoint         string // host and port of the server, without the bucket
	isAmazonEndpoint bool   // true if the endpoint belongs to Amazon, so that the region determines the host name
	isVirtualHosted  bool   // true if the bucket is part of the host name instead of the path
	bucket, key      string
	region           string // "" means the region of the environment, else us-east-1
	versionID        string // "" means the latest version

	credentials    aws.Credentials
	hasSignedQuery bool // true if the query of the URL already has a signature
}

const defaultS3Region = "us-east-1"

var (
	s3BucketPattern = lazyRegexp(`^[A-Za-z0-9][A-Za-z0-9._-]{1,254}$`)
	s3RegionPattern = lazyRegexp(`^[a-z0-9][a-z0-9-]{0,62}$`)
	// amazonRegionPattern does not match the other kinds of hosts that Amazon
	// has, such as s3-website-us-east-1 and s3-control.
	amazonRegionPattern = lazyRegexp(`^[a-z]{2}(-[a-z]+)+-[0-9]+$`)
	s3ErrorCodePattern  = lazyRegexp(`^[A-Z][A-Za-z]{1,63}$`)
)

// parseAmazonS3Host returns the bucket and the region in a host name of Amazon's
// S3; both can be "".
func parseAmazonS3Host(host string) (bucket, region string, ok bool) {
	host = strings.ToLower(host)
	name, ok := strings.CutSuffix(strings.TrimSuffix(host, ".cn"), ".amazonaws.com")
	if !ok {
		return "", "", false
	}
	labels := strings.Split(name, ".")
	isRegion := func(s string) bool { return amazonRegionPattern().MatchString(s) }
	last := len(labels) - 1
	if last >= 1 && isRegion(labels[last]) { // [bucket.]s3[.dualstack].region
		region = labels[last]
		last--
		if last >= 1 && labels[last] == "dualstack" {
			last--
		}
		ok = labels[last] == "s3" || labels[last] == "s3-fips"
	} else { // [bucket.]s3 or [bucket.]s3-region
		region, ok = strings.CutPrefix(labels[last], "s3-")
		ok = ok && isRegion(region) || labels[last] == "s3"
		if labels[last] == "s3" {
			region = ""
		}
	}
	return strings.Join(labels[:last], "."), region, ok
}

// isUnsignedAmazonS3URL reports whether a URL without the prefix s3:: names an object of Amazon's S3 that
// must be requested as an S3 source. A URL with a signature in its query is requested like any
// other URL.
func isUnsignedAmazonS3URL(u *url.URL) bool {
	_, _, ok := parseAmazonS3Host(u.Hostname())
	return ok && strings.EqualFold(u.Scheme, "https") && u.User == nil && !hasSignedQuery(u.RawQuery)
}

func hasSignedQuery(rawQuery string) bool {
	for part := range strings.SplitSeq(rawQuery, "&") {
		name, _, _ := strings.Cut(part, "=")
		if strings.EqualFold(name, "X-Amz-Signature") || name == "Signature" {
			return true
		}
	}
	return false
}

// parseS3Source parses the URL of an S3 source whose options are removed.
// Options are the values of s3OptionNames.
func parseS3Source(u *url.URL, options map[string]string) (*s3Source, error) {
	bucket, region, isAmazon := parseAmazonS3Host(u.Hostname())
	s := &s3Source{
		endpoint: u.Host, isAmazonEndpoint: isAmazon, bucket: bucket, isVirtualHosted: bucket != "",
		region: cmp.Or(options["region"], region), versionID: cmp.Or(options["versionId"], options["version"]),
		hasSignedQuery: hasSignedQuery(u.RawQuery),
		credentials: aws.Credentials{
			AccessKeyID: options["aws_access_key_id"], SecretAccessKey: options["aws_access_key_secret"], SessionToken: options["aws_access_token"],
		},
	}
	s.key = strings.TrimPrefix(u.Path, "/")
	if s.isVirtualHosted {
		s.endpoint = u.Host[len(bucket)+1:]
	} else {
		s.bucket, s.key, _ = strings.Cut(s.key, "/")
	}
	switch c := s.credentials; {
	case u.Host == "":
		return nil, errors.New("the source has no host: s3::https://host/bucket/key")
	case u.User != nil:
		return nil, errors.New("the source has a user: use the options aws_access_key_id and aws_access_key_secret")
	case u.Fragment != "":
		return nil, errors.New(`the source has a "#": in a key it is written as %23`)
	case !s3BucketPattern().MatchString(s.bucket) || strings.Contains(s.bucket, ".."):
		return nil, fmt.Errorf("%q is no name of a bucket", s.bucket)
	case strings.ContainsRune(s.key, 0):
		return nil, fmt.Errorf("the key %q has a zero byte", s.key)
	case s.region != "" && !s3RegionPattern().MatchString(s.region):
		return nil, fmt.Errorf("%q is no name of a region", s.region)
	case options["aws_profile"] != "":
		return nil, errors.New("the option aws_profile is not supported, because downloads cannot read the files of a profile: use aws_access_key_id and aws_access_key_secret")
	case (c.AccessKeyID == "") != (c.SecretAccessKey == ""), c.SessionToken != "" && c.AccessKeyID == "":
		return nil, errors.New("the options aws_access_key_id and aws_access_key_secret are needed both")
	}
	return s, nil
}

// s3OptionNames are the options of S3 sources that are not sent to the server as
// they are.
var s3OptionNames = []string{"region", "version", "versionId", "aws_access_key_id", "aws_access_key_secret", "aws_access_token", "aws_profile"}

// setDefaultsFromEnv sets the region and the credentials if the source has none, from the environment
// variables that the operator has listed for downloads.
func (s *s3Source) setDefaultsFromEnv(env map[string]string) error {
	s.region = cmp.Or(s.region, env["AWS_REGION"], env["AWS_DEFAULT_REGION"], defaultS3Region)
	if !s3RegionPattern().MatchString(s.region) {
		return fmt.Errorf("the variable AWS_REGION or AWS_DEFAULT_REGION: %q is no name of a region", s.region)
	}
	if s.credentials.AccessKeyID != "" {
		return nil
	}
	id, secret := env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]
	if (id == "") != (secret == "") {
		return errors.New("of the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY downloads have only one: see set_environment_variables in the client's artifact block")
	}
	s.credentials = aws.Credentials{AccessKeyID: id, SecretAccessKey: secret, SessionToken: env["AWS_SESSION_TOKEN"]}
	return nil
}

// copyCredentialsIfSameBucket copies the region and the credentials of another source in
// the same bucket, if s has no credentials.
func (s *s3Source) copyCredentialsIfSameBucket(other *s3Source) {
	if s.credentials.AccessKeyID == "" && s.endpoint == other.endpoint && s.bucket == other.bucket {
		s.credentials, s.region = other.credentials, other.region
	}
}

// requestURL returns the URL of a key, or of the bucket if key is "".
func (s *s3Source) requestURL(scheme, key, rawQuery string) *url.URL {
	host := s.endpoint
	if _, region, _ := parseAmazonS3Host(host); s.isAmazonEndpoint && region != s.region && (region != "" || s.region != defaultS3Region) {
		host = "s3." + s.region + ".amazonaws.com"
		if strings.HasPrefix(s.region, "cn-") {
			host += ".cn"
		}
	}
	p := "/" + s.bucket
	if s.isVirtualHosted {
		host, p = s.bucket+"."+host, ""
	}
	if key != "" || p == "" {
		p += "/" + key
	}
	// The signature covers the escaped path, in which only unreserved characters
	// are not escaped.
	return &url.URL{Scheme: scheme, Host: host, Path: p, RawPath: escapeS3Path(p), RawQuery: rawQuery}
}

func escapeS3Path(p string) string {
	var b strings.Builder
	for _, c := range []byte(p) {
		if c == '/' || c == '-' || c == '_' || c == '.' || c == '~' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// objectURL returns the URL of the source's object.
func (s *s3Source) objectURL(source *url.URL) *url.URL {
	query := source.RawQuery
	if s.versionID != "" {
		query = strings.TrimPrefix(query+"&versionId="+url.QueryEscape(s.versionID), "&")
	}
	return s.requestURL(source.Scheme, s.key, query)
}

// emptyPayloadHash is the SHA-256 of the body of a GET request.
const emptyPayloadHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// signRequestIfNeeded signs a request. If the source has no credentials, or the URL or the headers already
// authorize the request, signRequestIfNeeded changes nothing.
func (s *s3Source) signRequestIfNeeded(r *http.Request, now time.Time) error {
	if s.credentials.AccessKeyID == "" || s.hasSignedQuery || r.Header.Get("Authorization") != "" {
		return nil
	}
	r.Header.Set("X-Amz-Content-Sha256", emptyPayloadHash)
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	return signer.SignHTTP(r.Context(), s.credentials, r, emptyPayloadHash, "s3", s.region, now)
}

// updateRegionFromResponse sets the region to the region that Amazon names in a failed response, and reports
// whether the region has changed.
func (s *s3Source) updateRegionFromResponse(r *http.Response) bool {
	region := r.Header.Get("X-Amz-Bucket-Region")
	if !s.isAmazonEndpoint || s.hasSignedQuery || r.StatusCode == http.StatusOK || region == s.region || !amazonRegionPattern().MatchString(region) {
		return false
	}
	s.region = region
	return true
}

// s3Error is the response of a server that rejects a request. It contains no text
// of the server except a code, because a server can repeat secrets of the request.
type s3Error struct {
	httpStatus int
	errorCode  string // such as NoSuchKey; "" if the server has sent none
	remedyHint string
}

func (e *s3Error) Error() string {
	text := fmt.Sprintf("bad response code: %d", e.httpStatus)
	if e.errorCode != "" {
		text += " (" + e.errorCode + ")"
	}
	if e.remedyHint != "" {
		text += ": " + e.remedyHint
	}
	return text
}

// isMissingObjectError reports whether an error means that the bucket exists and has
// no object with the key.
func isMissingObjectError(err error) bool {
	e, ok := errors.AsType[*s3Error](err)
	return ok && e.httpStatus == http.StatusNotFound && (e.errorCode == "NoSuchKey" || e.errorCode == "")
}

// maxS3ErrorSize limits the size of an error response in bytes.
const maxS3ErrorSize = 64 << 10

// newResponseError reads the error in a response.
func (s *s3Source) newResponseError(r *http.Response) error {
	var body struct{ Code string }
	_ = xml.NewDecoder(io.LimitReader(r.Body, maxS3ErrorSize)).Decode(&body) // ignored: without an error code, the error is the status
	e := &s3Error{httpStatus: r.StatusCode}
	if s3ErrorCodePattern().MatchString(body.Code) {
		e.errorCode = body.Code
	}
	signed := s.credentials.AccessKeyID != ""
	switch {
	case e.errorCode == "RequestTimeTooSkewed":
		e.remedyHint = "the clock of this machine is wrong"
	case e.errorCode == "SignatureDoesNotMatch":
		e.remedyHint = "the secret key does not belong to the access key, or the region is not " + s.region
	case e.errorCode == "AuthorizationHeaderMalformed", e.errorCode == "PermanentRedirect", r.StatusCode >= 300 && r.StatusCode < 400:
		e.remedyHint = "set the option region to the region of the bucket, which is not " + s.region
	case r.StatusCode == http.StatusForbidden && !signed:
		e.remedyHint = "the request had no credentials: set the options aws_access_key_id and aws_access_key_secret"
	}
	return e
}

// downloadS3 downloads an object like a file of http or, if the source is a
// prefix, all objects below the prefix.
func (d *downloader) downloadS3(ctx context.Context) error {
	isPrefix := d.s3.key == "" || strings.HasSuffix(d.s3.key, "/")
	switch {
	case isPrefix && d.checksum != "":
		return errors.New("checksum cannot be specified for directory download")
	case isPrefix && d.Mode == "file" && d.subpath == "":
		return errors.New("mode is file, and the source names no object: a key does not end with a slash")
	case isPrefix:
		return d.downloadS3Prefix(ctx)
	}
	format, err := findArchiveFormat(path.Base(d.s3.key), d.archiveOption)
	if err != nil {
		return err
	}
	if d.checksum == "" && format == nil && (d.Mode == "dir" || d.subpath != "") {
		return d.downloadS3Prefix(ctx)
	}
	err = d.downloadAndUnpackFile(ctx)
	if d.checksum != "" || d.Mode == "file" || !isMissingObjectError(err) {
		return err
	}
	// The key can be a prefix. If the server rejects the request for a list, the first
	// error is the relevant one.
	prefixErr := d.downloadS3Prefix(ctx)
	if errors.Is(prefixErr, errNoObjects) || errors.Is(prefixErr, errListRejected) {
		return err
	}
	return prefixErr
}

var errListRejected = errors.New("the server rejects the request for a list")

var errNoObjects = errors.New("the bucket has no objects below this prefix")

// downloadS3Prefix downloads all objects below the prefix into a directory tree.
func (d *downloader) downloadS3Prefix(ctx context.Context) error {
	if err := d.s3.setDefaultsFromEnv(d.Env); err != nil {
		return err
	}
	if err := d.stagingRoot.Mkdir(unpackedDirName, 0o755); err != nil {
		return err
	}
	root, err := d.stagingRoot.OpenRoot(unpackedDirName)
	if err != nil {
		return err
	}
	defer root.Close()
	prefix := d.s3.key
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	// A separate downloader gets the objects: each object has a key of its own, no version, and a
	// counter that does not change the total.
	source, address := *d.parsedSource, *d.s3
	address.versionID, source.s3 = "", &address
	object := &downloader{downloadRequest: d.downloadRequest, parsedSource: &source, stagingRoot: d.stagingRoot, transferCounter: new(transferCounter), sharedHTTPClient: d.newHTTPClient()}
	defer object.sharedHTTPClient.CloseIdleConnections()
	u := &unpacker{root: root, unpackQuota: unpackQuota{limits: d.Limits}}
	found := false
	err = object.listObjects(ctx, prefix, func(o listedS3Object) error {
		found = true
		if err := u.addFile(); err != nil {
			return err
		}
		name, err := cleanObjectNameBelowPrefix(prefix, o)
		if err != nil || name == "" {
			return err
		}
		address.key = o.Key
		return object.downloadObjectToFile(ctx, u, name, d.transferCounter)
	})
	if err != nil {
		return err
	}
	if !found {
		return errNoObjects
	}
	return d.moveTreeOrSubpathToResult(unpackedDirName, path.Base(d.s3.key))
}

// downloadObjectToFile downloads the object of d's source to a new file called name in the directory of u.
func (d *downloader) downloadObjectToFile(ctx context.Context, u *unpacker, name string, receivedBytesCounter io.Writer) error {
	switch info, err := u.root.Lstat(name); {
	case err == nil && info.IsDir():
		return fmt.Errorf("object %q is a directory already, because another object lies below it", name)
	case err == nil:
		return fmt.Errorf("object %q is listed twice", name)
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("object %q: %w", name, err)
	}
	if err := u.makeParentDirs(name); err != nil {
		return err
	}
	body, err := d.openHTTPFile(ctx)
	if err != nil {
		return fmt.Errorf("object %q: %w", name, err)
	}
	defer body.Close()
	var w = receivedBytesCounter
	if limit := d.Limits.HTTPMaxBytes; limit > 0 {
		w = io.MultiWriter(&byteLimitChecker{remainingBytes: limit, newLimitError: func() error { return newFileTooLargeError(limit) }}, receivedBytesCounter)
	}
	if err := u.writeNewFile(name, 0o644, io.TeeReader(body, w)); err != nil {
		return fmt.Errorf("object %q: %w", name, contextCauseOrRedactedError(ctx, err))
	}
	return nil
}

// cleanObjectNameBelowPrefix returns the name of an object below the prefix. The name is ""
// for an empty object that stands for a directory. The keys come from the server.
func cleanObjectNameBelowPrefix(prefix string, o listedS3Object) (string, error) {
	name, ok := strings.CutPrefix(o.Key, prefix)
	switch {
	case !ok:
		return "", fmt.Errorf("the server lists the object %q, which is not below %q", shortenForError(o.Key), prefix)
	case (name == "" || strings.HasSuffix(name, "/")) && o.Size > 0:
		return "", fmt.Errorf("object %q has the name of a directory, and content", shortenForError(o.Key))
	case name == "":
		return "", nil
	}
	isDir := strings.HasSuffix(name, "/")
	clean, err := validateAndCleanEntryName(strings.TrimSuffix(name, "/"))
	if err != nil {
		return "", fmt.Errorf("object %q: %w", shortenForError(o.Key), err)
	}
	if clean != strings.TrimSuffix(name, "/") || clean == "." {
		return "", fmt.Errorf("object %q has an empty part, or a dot, in its name", shortenForError(o.Key))
	}
	if isDir {
		return "", nil
	}
	return clean, nil
}

// shortenForError returns at most 200 bytes of a text, for an error message.
func shortenForError(text string) string {
	const maxLen = 200
	if len(text) > maxLen {
		return text[:maxLen] + "…"
	}
	return text
}

// listedS3Object is an object in a page of the bucket's list.
type listedS3Object struct {
	Key  string
	Size int64
}

const (
	// maxListingSize limits one page of a list in bytes: a thousand keys of 1024
	// bytes, each byte escaped, with their attributes.
	maxListingSize = 16 << 20
	// maxEmptyPages limits how many pages in a row can have no object.
	maxEmptyPages = 100
)

// listObjects calls do for each object below the prefix, in the order in which the server lists the
// objects.
func (d *downloader) listObjects(ctx context.Context, prefix string, do func(listedS3Object) error) error {
	emptyPages := 0
	for token := ""; ; {
		page, err := d.listObjectsPage(ctx, prefix, token)
		if err != nil {
			return fmt.Errorf("list the objects below %q: %w", prefix, err)
		}
		for _, o := range page.Contents {
			if err := do(o); err != nil {
				return err
			}
		}
		if emptyPages++; len(page.Contents) > 0 {
			emptyPages = 0
		}
		switch {
		case !page.IsTruncated:
			return nil
		case page.NextContinuationToken == "" || page.NextContinuationToken == token || emptyPages > maxEmptyPages:
			return fmt.Errorf("list the objects below %q: the server does not continue its list", prefix)
		}
		token = page.NextContinuationToken
	}
}

func (d *downloader) listObjectsPage(ctx context.Context, prefix, continuationToken string) (*s3Listing, error) {
	q := url.Values{"list-type": {"2"}, "encoding-type": {"url"}, "prefix": {prefix}}
	if continuationToken != "" {
		q.Set("continuation-token", continuationToken)
	}
	query := strings.ReplaceAll(q.Encode(), "+", "%20")
	response, err := d.sendWithRegionRetry(func() (*http.Response, error) {
		request, err := d.newHTTPRequest(ctx, d.s3.requestURL(d.url.Scheme, "", query))
		if err != nil {
			return nil, err
		}
		if err := d.s3.signRequestIfNeeded(request, time.Now()); err != nil {
			return nil, err
		}
		return d.sharedHTTPClient.Do(request)
	})
	if err != nil {
		return nil, contextCauseOrRedactedError(ctx, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: %w", errListRejected, d.s3.newResponseError(response))
	}
	page, err := parseS3Listing(response.Body)
	return page, contextCauseOrRedactedError(ctx, err)
}

// sendWithRegionRetry sends a request and, if the bucket is in another region, sends it a
// second time.
func (d *downloader) sendWithRegionRetry(send func() (*http.Response, error)) (*http.Response, error) {
	response, err := send()
	if err != nil || d.s3 == nil || !d.s3.updateRegionFromResponse(response) {
		return response, err
	}
	response.Body.Close()
	return send()
}

// s3Listing is a page of the response to "ListObjectsV2".
type s3Listing struct {
	EncodingType          string
	IsTruncated           bool
	NextContinuationToken string
	Contents              []listedS3Object
}

func parseS3Listing(r io.Reader) (*s3Listing, error) {
	limited := &io.LimitedReader{R: r, N: maxListingSize}
	var page s3Listing
	if err := xml.NewDecoder(limited).Decode(&page); err != nil {
		if limited.N <= 0 {
			return nil, fmt.Errorf("the list is larger than %s", formatSize(maxListingSize))
		}
		if syntax, ok := errors.AsType[*xml.SyntaxError](err); ok {
			return nil, fmt.Errorf("the server has sent no list: line %d is not valid XML", syntax.Line)
		}
		if os.IsTimeout(err) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, err
		}
		return nil, errors.New("the server has sent no list of objects")
	}
	if page.EncodingType == "url" {
		for i, o := range page.Contents {
			key, err := url.QueryUnescape(o.Key)
			if err != nil {
				return nil, fmt.Errorf("the server lists the object %q, whose name is not escaped correctly", shortenForError(o.Key))
			}
			page.Contents[i].Key = key
		}
	}
	return &page, nil
}
