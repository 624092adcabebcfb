package artifact

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// verifySigV4 checks the signature of a GET request as the documentation of
// Amazon's Signature Version 4 describes it. It shares no code with the signer.
func verifySigV4(r *http.Request, keyID, secret, region string, now time.Time) error {
	fields, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok {
		return errors.New("AccessDenied")
	}
	parts := map[string]string{}
	for field := range strings.SplitSeq(fields, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		parts[name] = value
	}
	date := r.Header.Get("X-Amz-Date")
	signedAt, err := time.Parse("20060102T150405Z", date)
	if err != nil {
		return errors.New("AccessDenied")
	}
	if d := now.Sub(signedAt); d > 15*time.Minute || d < -15*time.Minute {
		return errors.New("RequestTimeTooSkewed")
	}
	scope := []string{date[:8], region, "s3", "aws4_request"}
	gotKey, gotScope, _ := strings.Cut(parts["Credential"], "/")
	if gotKey != keyID {
		return errors.New("InvalidAccessKeyId")
	}
	if gotScope != strings.Join(scope, "/") {
		return errors.New("AuthorizationHeaderMalformed")
	}
	signed := strings.Split(parts["SignedHeaders"], ";")
	for name := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-amz-") && !slices.Contains(signed, name) {
			return errors.New("AccessDenied")
		}
	}
	if !slices.Contains(signed, "host") || !slices.IsSorted(signed) {
		return errors.New("AccessDenied")
	}
	escape := func(s, unescaped string) string {
		var b strings.Builder
		for i := range len(s) {
			if c := s[i]; strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"+unescaped, c) >= 0 {
				b.WriteByte(c)
			} else {
				b.WriteString("%" + strings.ToUpper(hex.EncodeToString([]byte{c})))
			}
		}
		return b.String()
	}
	var query []string
	for name, values := range r.URL.Query() {
		for _, value := range values {
			query = append(query, escape(name, "")+"="+escape(value, ""))
		}
	}
	slices.Sort(query)
	canonical := r.Method + "\n" + escape(r.URL.Path, "/") + "\n" + strings.Join(query, "&") + "\n"
	for _, name := range signed {
		value := strings.Join(r.Header.Values(name), ",")
		if name == "host" {
			value = r.Host
		}
		canonical += name + ":" + strings.Join(strings.Fields(value), " ") + "\n"
	}
	bodyHash := hex.EncodeToString(sha256.New().Sum(nil))
	if r.Header.Get("X-Amz-Content-Sha256") != bodyHash {
		return errors.New("XAmzContentSHAMismatch")
	}
	canonical += "\n" + strings.Join(signed, ";") + "\n" + bodyHash
	hashed := sha256.Sum256([]byte(canonical))
	key := []byte("AWS4" + secret)
	for _, text := range append(scope, "AWS4-HMAC-SHA256\n"+date+"\n"+strings.Join(scope, "/")+"\n"+hex.EncodeToString(hashed[:])) {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(text))
		key = mac.Sum(nil)
	}
	if hex.EncodeToString(key) != parts["Signature"] {
		return errors.New("SignatureDoesNotMatch")
	}
	return nil
}

// The requests of s3Source have a valid signature for each key, and the check of
// this test notices what differs.
func TestS3Signatures(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, key := range []string{"a", "a b+c/ü%$&'()*,:;=@~!.txt", "%2e%2E/x", "a?b#c", "dir/"} {
		for _, source := range []*s3Source{
			{endpoint: "localhost:9000", bucket: "bucket", key: key},
			{endpoint: "s3.amazonaws.com", isAmazonEndpoint: true, isVirtualHosted: true, bucket: "my.bucket", key: key, versionID: "a b/c"},
		} {
			source.region = "eu-central-1"
			source.credentials = aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret", SessionToken: "token"}
			sign := func() *http.Request {
				t.Helper()
				d := &downloader{downloadRequest: downloadRequest{Headers: map[string]string{"X-Amz-Request-Payer": "requester"}}}
				r, err := d.newHTTPRequest(t.Context(), source.objectURL(&url.URL{Scheme: "http", RawQuery: "x=1+2"}))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Range", "bytes=5-")
				if err := source.signRequestIfNeeded(r, now); err != nil {
					t.Fatal(err)
				}
				return r
			}
			if r := sign(); !strings.HasSuffix(r.URL.Path, "/"+key) || r.Header.Get("X-Amz-Security-Token") != "token" {
				t.Errorf("the path is %q, and the token %q", r.URL.Path, r.Header.Get("X-Amz-Security-Token"))
			}
			for _, c := range []struct {
				name, want     string
				change         func(*http.Request)
				secret, region string
				at             time.Time
			}{
				{name: "unchanged"},
				{name: "another secret key", secret: "public", want: "SignatureDoesNotMatch"},
				{name: "another region", region: "us-east-1", want: "AuthorizationHeaderMalformed"},
				{name: "an expired date", at: now.Add(time.Hour), want: "RequestTimeTooSkewed"},
				{name: "a date of the future", at: now.Add(-time.Hour), want: "RequestTimeTooSkewed"},
				{name: "a changed date", change: func(r *http.Request) { r.Header.Set("X-Amz-Date", "20260102T030406Z") }, want: "SignatureDoesNotMatch"},
				{name: "a changed header", change: func(r *http.Request) { r.Header.Set("X-Amz-Request-Payer", "owner") }, want: "SignatureDoesNotMatch"},
				{name: "a changed token", change: func(r *http.Request) { r.Header.Set("X-Amz-Security-Token", "t") }, want: "SignatureDoesNotMatch"},
				{name: "a new header", change: func(r *http.Request) { r.Header.Set("X-Amz-Acl", "public-read") }, want: "AccessDenied"},
				{name: "a changed path", change: func(r *http.Request) { r.URL.Path += "x" }, want: "SignatureDoesNotMatch"},
				{name: "a changed query", change: func(r *http.Request) { r.URL.RawQuery += "&acl" }, want: "SignatureDoesNotMatch"},
				{name: "another host", change: func(r *http.Request) { r.Host = "example.com" }, want: "SignatureDoesNotMatch"},
			} {
				r := sign()
				if r.Host == "" {
					r.Host = r.URL.Host
				}
				if c.change != nil {
					c.change(r)
				}
				if c.at.IsZero() {
					c.at = now
				}
				err := verifySigV4(r, "id", cmp.Or(c.secret, "secret"), cmp.Or(c.region, "eu-central-1"), c.at)
				if got := fmt.Sprint(err); got != cmp.Or(c.want, "<nil>") {
					t.Errorf("%s of %s: %s, want %s", c.name, r.URL, got, c.want)
				}
			}
		}
	}
}

// s3Server is a server of buckets. Requests are rejected unless they are signed
// with the secret key of the test.
type s3Server struct {
	url      string
	objects  map[string]string // bucket/key -> content
	pageSize int
	public   bool                                               // objects, but not their list, can be read without a signature
	override func(rw http.ResponseWriter, r *http.Request) bool // handles a request; nil means none
	list     []listedS3Object                                   // what a list request returns; nil means the names of objects

	mu       sync.Mutex
	requests []string
}

const (
	testKeyID     = "AKIDTEST"
	testSecretKey = "S3cr3tKey/of+the+Bucket"
	testToken     = "T0ken/of+the+Session=="
	testRegion    = "eu-west-3"
)

func newS3Server(t *testing.T, objects map[string]string) *s3Server {
	s := &s3Server{objects: objects, pageSize: 1000}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *s3Server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Method+" "+r.Host+r.URL.RequestURI())
	s.mu.Unlock()
	if s.override != nil && s.override(rw, r) {
		return
	}
	fail := func(status int, code string) {
		rw.WriteHeader(status)
		// Amazon repeats parts of the request in its errors.
		fmt.Fprintf(rw, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>%s</Message><Token>%s</Token></Error>",
			code, r.Header.Get("Authorization"), r.Header.Get("X-Amz-Security-Token"))
	}
	bucket, key, isObject := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	isObject = isObject && key != ""
	if host, _, ok := strings.Cut(r.Host, ".s3."); ok {
		bucket, key = host, strings.TrimPrefix(r.URL.Path, "/")
		isObject = key != ""
	}
	if r.Header.Get("Authorization") != "" || !s.public || !isObject {
		if err := verifySigV4(r, testKeyID, testSecretKey, testRegion, time.Now()); err != nil {
			fail(http.StatusForbidden, err.Error())
			return
		}
	}
	if !isObject {
		s.serveList(rw, r.URL.Query(), bucket)
		return
	}
	content, ok := s.objects[bucket+"/"+key]
	if !ok {
		fail(http.StatusNotFound, "NoSuchKey")
		return
	}
	rw.Header().Set("Etag", `"v1"`)
	http.ServeContent(rw, r, "", time.Time{}, strings.NewReader(content))
}

// serveList serves one page of "ListObjectsV2".
func (s *s3Server) serveList(rw http.ResponseWriter, q url.Values, bucket string) {
	all := s.list
	if all == nil {
		for name, content := range s.objects {
			if key, ok := strings.CutPrefix(name, bucket+"/"); ok && strings.HasPrefix(key, q.Get("prefix")) {
				all = append(all, listedS3Object{key, int64(len(content))})
			}
		}
		slices.SortFunc(all, func(a, b listedS3Object) int { return strings.Compare(a.Key, b.Key) })
	}
	if q.Get("list-type") != "2" || q.Get("encoding-type") != "url" {
		http.Error(rw, "no such list", http.StatusBadRequest)
		return
	}
	from, _ := strconv.Atoi(strings.TrimPrefix(q.Get("continuation-token"), "token/+= "))
	var page struct {
		XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
		EncodingType          string
		IsTruncated           bool
		NextContinuationToken string
		Contents              []listedS3Object
	}
	to := min(from+s.pageSize, len(all))
	page.EncodingType, page.IsTruncated = "url", to < len(all)
	if page.IsTruncated {
		page.NextContinuationToken = "token/+= " + strconv.Itoa(to)
	}
	for _, o := range all[from:to] {
		page.Contents = append(page.Contents, listedS3Object{url.QueryEscape(o.Key), o.Size})
	}
	_ = xml.NewEncoder(rw).Encode(page)
}

// artifact returns an artifact of the server, with credentials.
func (s *s3Server) artifact(path string, more ...any) map[string]any {
	a := map[string]any{"GetterSource": "s3::" + s.url + path, "GetterMode": "any", "RelativeDest": "local/", "GetterOptions": s3Options()}
	for i := 0; i < len(more); i += 2 {
		a[more[i].(string)] = more[i+1]
	}
	return a
}

func s3Options(pairs ...string) map[string]string {
	return optionMap(append([]string{
		"region", testRegion, "aws_access_key_id", testKeyID, "aws_access_key_secret", testSecretKey, "aws_access_token", testToken,
	}, pairs...)...)
}

func TestS3Downloads(t *testing.T) {
	t.Parallel()
	archive := string(makeTar(t, archiveEntry{name: "bin/run", content: "run"}))
	objects := map[string]string{
		"bkt/one.txt": "one", "bkt/dir/a b+%ü.txt": "special", "bkt/dir/deep/er/file": "deep", "bkt/dir/": "", "bkt/dir/empty/": "", "bkt/dirty/x": "x",
		"bkt/app.tar": archive, "bkt/SUMS": fmt.Sprintf("%x  one.txt\n", sha256.Sum256([]byte("one"))), "bkt/dir.zip/x": "x", "other/x": "x",
	}
	tree := map[string]string{"a b+%ü.txt": "special", "deep/er/file": "deep"}
	for _, c := range []struct {
		name string
		path string
		more []any
		want map[string]string
	}{
		{"an object", "/bkt/one.txt", nil, map[string]string{"one.txt": "one"}},
		{"an object in mode file", "/bkt/one.txt", []any{"GetterMode", "file", "RelativeDest", "local/x"}, map[string]string{"x": "one"}},
		{"a key with special characters", "/bkt/dir/a%20b+%25%C3%BC.txt", nil, map[string]string{"a b+%ü.txt": "special"}},
		{"options in the query", "/bkt/one.txt?region=" + testRegion + "&aws_access_key_id=" + testKeyID + "&aws_access_key_secret=" + url.QueryEscape(testSecretKey),
			[]any{"GetterOptions", nil}, map[string]string{"one.txt": "one"}},
		{"a name", "/bkt/one.txt", []any{"GetterOptions", s3Options("filename", "two")}, map[string]string{"two": "one"}},
		{"a version", "/bkt/one.txt", []any{"GetterOptions", s3Options("version", "v 1")}, map[string]string{"one.txt": "one"}},
		{"a prefix", "/bkt/dir/", nil, tree},
		{"a prefix without a slash", "/bkt/dir", nil, tree},
		{"a prefix in mode dir", "/bkt/dir", []any{"GetterMode", "dir", "RelativeDest", "local"}, tree},
		{"a prefix like the name of an archive", "/bkt/dir.zip", nil, map[string]string{"x": "x"}},
		{"a part of a prefix", "/bkt/dir//deep", nil, map[string]string{"er/file": "deep"}},
		{"a whole bucket", "/other", nil, map[string]string{"x": "x"}},
		{"a whole bucket with a slash", "/other/", []any{"GetterMode", "dir"}, map[string]string{"x": "x"}},
		{"an archive", "/bkt/app.tar", nil, map[string]string{"bin/run": "run"}},
		{"an archive in mode dir", "/bkt/app.tar", []any{"GetterMode", "dir"}, map[string]string{"bin/run": "run"}},
		{"an archive that is not to be unpacked", "/bkt/app.tar", []any{"GetterOptions", s3Options("archive", "false")}, map[string]string{"app.tar": archive}},
		{"a part of an archive", "/bkt/app.tar//bin", nil, map[string]string{"run": "run"}},
		{"a checksum", "/bkt/one.txt", []any{"GetterOptions", s3Options("checksum", sha256Sum([]byte("one")))}, map[string]string{"one.txt": "one"}},
		{"a checksum of an archive", "/bkt/app.tar", []any{"GetterOptions", s3Options("checksum", sha256Sum([]byte(archive)))}, map[string]string{"bin/run": "run"}},
		{"a checksum from a list in the bucket", "/bkt/one.txt", []any{"GetterOptions", s3Options("checksum", "file:s3::HOST/bkt/SUMS")}, map[string]string{"one.txt": "one"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, s := newFixture(t), newS3Server(t, objects)
			s.pageSize = 2
			a := s.artifact(c.path, c.more...)
			if options, ok := a["GetterOptions"].(map[string]string); ok {
				options["checksum"] = strings.Replace(options["checksum"], "HOST", s.url, 1)
			}
			w.mustDownload(a)
			w.expectLocalFiles(c.want)
			for _, request := range s.requests {
				if strings.Contains(request, "aws_") || strings.Contains(request, "region=") || !strings.HasPrefix(request, "GET ") {
					t.Errorf("the server got %s", request)
				}
			}
			if c.name == "a version" && !strings.HasSuffix(s.requests[0], "?versionId=v%201") {
				t.Errorf("requests %q", s.requests)
			}
		})
	}
}

func TestS3Failures(t *testing.T) {
	t.Parallel()
	objects := map[string]string{"bkt/one": "one", "bkt/dir/a": strings.Repeat("a", 600), "bkt/dir/b": strings.Repeat("b", 600), "bkt/dir/c": "c"}
	for _, c := range []struct {
		name   string
		path   string
		more   []any
		limits map[string]any
		words  string
	}{
		{"no object", "/bkt/none", nil, nil, "bad response code: 404 (NoSuchKey)"},
		{"no object in mode file", "/bkt/dir", []any{"GetterMode", "file"}, nil, "bad response code: 404 (NoSuchKey)"},
		{"no object below a prefix", "/bkt/none/", nil, nil, "the bucket has no objects below this prefix"},
		{"an object in mode dir", "/bkt/one", []any{"GetterMode", "dir"}, nil, "the bucket has no objects below this prefix"},
		{"a prefix in mode file", "/bkt/dir/", []any{"GetterMode", "file"}, nil, "mode is file, and the source names no object"},
		{"a prefix with a checksum", "/bkt/dir/", []any{"GetterOptions", s3Options("checksum", "md5:"+strings.Repeat("0", 32))}, nil, "checksum cannot be specified for directory download"},
		{"a wrong checksum", "/bkt/one", []any{"GetterOptions", s3Options("checksum", "md5:"+strings.Repeat("0", 32))}, nil, "Checksums did not match for one"},
		{"no credentials", "/bkt/one", []any{"GetterOptions", nil}, nil, "bad response code: 403 (AccessDenied): the request had no credentials: set the options aws_access_key_id"},
		{"a wrong secret key", "/bkt/one", []any{"GetterOptions", s3Options("aws_access_key_secret", "wrong-Secret")}, nil, "403 (SignatureDoesNotMatch): the secret key does not belong"},
		{"an unknown access key", "/bkt/one", []any{"GetterOptions", s3Options("aws_access_key_id", "AKIDOTHER")}, nil, "403 (InvalidAccessKeyId)"},
		{"a wrong region", "/bkt/dir/", []any{"GetterOptions", s3Options("region", "eu-west-1")}, nil, "403 (AuthorizationHeaderMalformed): set the option region to the region of the bucket, which is not eu-west-1"},
		{"half the credentials", "/bkt/one", []any{"GetterOptions", optionMap("aws_access_key_secret", testSecretKey)}, nil, "are needed both"},
		{"a profile", "/bkt/one", []any{"GetterOptions", s3Options("aws_profile", "p")}, nil, "the option aws_profile is not supported"},
		{"a region that is no name", "/bkt/one", []any{"GetterOptions", s3Options("region", "x/../y")}, nil, `"x/../y" is no name of a region`},
		{"no bucket", "/", nil, nil, `"" is no name of a bucket`},
		{"a bucket that leads up", "/..%2F/x", nil, nil, `is no name of a bucket`},
		{"a number sign", "/bkt/one#two", nil, nil, "in a key it is written as %23"},
		{"too many objects", "/bkt/dir/", nil, map[string]any{"decompression_limit_file_count": 2}, "it holds more than 2 files"},
		{"too many bytes", "/bkt/dir/", nil, map[string]any{"decompression_limit_size": 1000}, "it unpacks to more than 1000 B"},
		{"too large an object", "/bkt/dir/", nil, map[string]any{"http_max_size": 500}, "the download is larger than 500 B: see http_max_size"},
		{"too large a file", "/bkt/dir/a", nil, map[string]any{"http_max_size": 500}, "the download is larger than 500 B: see http_max_size"},
		{"too slow", "/bkt/slow", nil, map[string]any{"s3_timeout": 300 * time.Millisecond}, "not done after 300ms: see s3_timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, s := newFixture(t), newS3Server(t, objects)
			w.limits = c.limits
			s.override = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != "/bkt/slow" {
					return false
				}
				<-r.Context().Done()
				return true
			}
			a := s.artifact(c.path, c.more...)
			w.expectFailure(a, c.words)
			_, err := w.prestart(nil, a)
			for _, secret := range []string{testSecretKey, testToken, "wrong-Secret", "Signature="} {
				if text := fmt.Sprint(err, w.host.events); strings.Contains(text, secret) {
					t.Errorf("%q is in %s", secret, text)
				}
			}
		})
	}
}

// The names in a list come from the server.
func TestS3HostileLists(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		list  []listedS3Object
		words string
	}{
		{"dots", []listedS3Object{{"p/fine", 0}, {"p/../../evil", 0}}, `object "p/../../evil": entry "../../evil" leads out of the artifact with ".."`},
		{"dots inside", []listedS3Object{{"p/a/../b", 0}}, `object "p/a/../b": entry "a/../b" leads out`},
		{"one dot", []listedS3Object{{"p/a/./b", 0}}, `object "p/a/./b" has an empty part, or a dot, in its name`},
		{"only a dot", []listedS3Object{{"p/.", 0}}, `object "p/." has an empty part, or a dot, in its name`},
		{"an absolute path", []listedS3Object{{"p//etc/x", 0}}, `object "p//etc/x": entry "/etc/x" has an absolute path`},
		{"an empty part", []listedS3Object{{"p/a//b", 0}}, `object "p/a//b" has an empty part, or a dot, in its name`},
		{"an empty directory with an empty name", []listedS3Object{{"p//", 0}}, `object "p//": an entry has no name`},
		{"a zero byte", []listedS3Object{{"p/a\x00b", 0}}, `object "p/a\x00b": the name of entry "a\x00b" has a zero byte`},
		{"an empty key", []listedS3Object{{"", 0}}, `the server lists the object "", which is not below "p/"`},
		{"another prefix", []listedS3Object{{"q/x", 0}}, `the server lists the object "q/x", which is not below "p/"`},
		{"a directory below a file", []listedS3Object{{"p/a", 0}, {"p/a/b", 0}}, `entry "a/b" lies below "a", which is no directory`},
		{"a file over a directory", []listedS3Object{{"p/a/b", 0}, {"p/a", 0}}, `object "a" is a directory already, because another object lies below it`},
		{"a name twice", []listedS3Object{{"p/a", 0}, {"p/a", 0}}, `object "a" is listed twice`},
		{"a directory with content", []listedS3Object{{"p/a/", 5}}, `object "p/a/" has the name of a directory, and content`},
		{"the prefix with content", []listedS3Object{{"p/", 5}}, `object "p/" has the name of a directory, and content`},
		{"a name that is too long", []listedS3Object{{"p/" + strings.Repeat("n", 300), 0}}, "file name too long"},
		{"directories in directories", []listedS3Object{{"p/" + strings.Repeat("d/", 300) + "x", 0}}, "lies more than 256 directories deep"},
		{"an object that is not there", []listedS3Object{{"p/gone", 0}}, `object "gone": bad response code: 404 (NoSuchKey)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, s := newFixture(t), newS3Server(t, map[string]string{"bkt/p/fine": "", "bkt/p/a": "", "bkt/p/a/b": ""})
			s.list = c.list
			w.expectFailure(s.artifact("/bkt/p/"), c.words)
		})
	}
	for name, c := range map[string]struct{ body, words string }{
		"no list":              {"<html><br></html>", "the server has sent no list"},
		"an endless list":      {"<R><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></R>", "the server does not continue its list"},
		"no token":             {"<R><IsTruncated>true</IsTruncated></R>", "the server does not continue its list"},
		"a bad escape":         {"<R><EncodingType>url</EncodingType><Contents><Key>p/%zz</Key></Contents></R>", `the server lists the object "p/%zz", whose name is not escaped correctly`},
		"a negative size":      {"<R><Contents><Key>p/x</Key><Size>x</Size></Contents></R>", "the server has sent no list of objects"},
		"more than one page":   {"<R>" + strings.Repeat("<Contents><Key>p/x</Key></Contents>", maxListingSize/30), "the list is larger than"},
		"a list without a end": {"<R><Contents>", "the server has sent no list"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, s := newFixture(t), newS3Server(t, nil)
			s.override = func(rw http.ResponseWriter, _ *http.Request) bool {
				_, _ = io.WriteString(rw, c.body)
				return true
			}
			w.expectFailure(s.artifact("/bkt/p/"), c.words)
		})
	}
}

// Public objects need no credentials, and no permission to list the bucket.
func TestS3AnonymousRequests(t *testing.T) {
	t.Parallel()
	w, s := newFixture(t), newS3Server(t, map[string]string{"bkt/one": "one"})
	s.public = true
	w.mustDownload(s.artifact("/bkt/one", "GetterOptions", nil))
	w.expectLocalFiles(map[string]string{"one": "one"})
	w.expectFailure(s.artifact("/bkt/none", "GetterOptions", nil), "bad response code: 404 (NoSuchKey)")
}

// A download continues after a broken connection, with a signed request.
func TestS3DownloadIsResumed(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("content ", 10000)
	w, s := newFixture(t), newS3Server(t, map[string]string{"bkt/big": content})
	broken := false
	s.override = func(rw http.ResponseWriter, r *http.Request) bool {
		if broken {
			return false
		}
		broken = true
		rw.Header().Set("Accept-Ranges", "bytes")
		rw.Header().Set("Etag", `"v1"`)
		rw.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = io.WriteString(rw, content[:40000])
		return true
	}
	w.mustDownload(s.artifact("/bkt/big"))
	w.expectLocalFiles(map[string]string{"big": content})
	if len(s.requests) != 2 {
		t.Errorf("requests %q, want two", s.requests)
	}
}

// A server cannot send the credentials of a request to another server.
func TestS3RedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	w, s, other := newFixture(t), newS3Server(t, nil), newS3Server(t, map[string]string{"bkt/one": "one"})
	s.override = func(rw http.ResponseWriter, r *http.Request) bool {
		rw.Header().Set("X-Amz-Bucket-Region", "us-west-2")
		http.Redirect(rw, r, other.url+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	}
	w.expectFailure(s.artifact("/bkt/one"), "bad response code: 307: set the option region to the region of the bucket, which is not "+testRegion)
	w.expectFailure(s.artifact("/bkt/dir/"), "bad response code: 307")
	if len(other.requests) > 0 || len(s.requests) != 2 {
		t.Errorf("requests %q, and to the other server %q", s.requests, other.requests)
	}
}

// Credentials come from variables of the agent only if the operator lists them.
func TestS3CredentialsOfTheEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": testKeyID, "AWS_SECRET_ACCESS_KEY": testSecretKey, "AWS_SESSION_TOKEN": testToken, "AWS_REGION": testRegion,
	} {
		t.Setenv(name, value)
	}
	w, s := newFixture(t), newS3Server(t, map[string]string{"bkt/one": "one", "bkt/dir/two": "two"})
	w.expectFailure(s.artifact("/bkt/one", "GetterOptions", nil), "the request had no credentials")
	list := func(names ...string) {
		w.limits = map[string]any{"set_environment_variables": append(names, "GORACE")}
	}
	list("AWS_REGION", "AWS_ACCESS_KEY_ID")
	w.expectFailure(s.artifact("/bkt/one", "GetterOptions", nil), "downloads have only one: see set_environment_variables")
	list("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
	w.mustDownload(s.artifact("/bkt/one", "GetterOptions", nil))
	w.mustDownload(s.artifact("/bkt/dir/", "GetterOptions", nil))
	w.expectLocalFiles(map[string]string{"one": "one", "two": "two"})
	w.expectFailure(s.artifact("/bkt/one", "GetterOptions", s3Options("aws_access_key_secret", "other")), "SignatureDoesNotMatch")
}

// Amazon names the region of a bucket, in the name of a host that follows from
// the region. The proxy of this test plays all hosts.
func TestS3HostsOfAmazon(t *testing.T) {
	s := newS3Server(t, map[string]string{"bkt/dir/one": "one"})
	t.Setenv("http_proxy", s.url)
	t.Setenv("HTTP_PROXY", s.url)
	s.override = func(rw http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.Host, testRegion) {
			return false
		}
		rw.Header().Set("X-Amz-Bucket-Region", testRegion)
		rw.WriteHeader(http.StatusMovedPermanently)
		return true
	}
	for _, c := range []struct {
		source  string
		options map[string]string
		hosts   []string
	}{
		{"http://bkt.s3." + testRegion + ".amazonaws.com/dir/one", s3Options(), []string{"bkt.s3.eu-west-3.amazonaws.com/dir/one"}},
		{"http://bkt.s3.amazonaws.com/dir/one", s3Options(), []string{"bkt.s3.eu-west-3.amazonaws.com/dir/one"}},
		{"http://s3.amazonaws.com/bkt/dir/one", s3Options("region", ""), []string{"s3.amazonaws.com/bkt/dir/one", "s3.eu-west-3.amazonaws.com/bkt/dir/one"}},
		{"http://s3-us-west-2.amazonaws.com/bkt/dir/one", s3Options("region", ""), []string{"s3-us-west-2.amazonaws.com/bkt/dir/one", "s3.eu-west-3.amazonaws.com/bkt/dir/one"}},
		{"http://bkt.s3.us-west-2.amazonaws.com/dir/", s3Options("region", ""), []string{
			"bkt.s3.us-west-2.amazonaws.com/?encoding-type=url&list-type=2&prefix=dir%2F",
			"bkt.s3.eu-west-3.amazonaws.com/?encoding-type=url&list-type=2&prefix=dir%2F",
			"bkt.s3.eu-west-3.amazonaws.com/dir/one",
		}},
	} {
		w := newFixture(t)
		s.requests = nil
		w.mustDownload(httpArtifact(w, "", "GetterSource", "s3::"+c.source, "GetterOptions", c.options))
		w.expectLocalFiles(map[string]string{"one": "one"})
		for i := range s.requests {
			s.requests[i] = strings.Replace(strings.TrimPrefix(s.requests[i], "GET "), "http://"+strings.SplitN(c.source, "/", 4)[2], "", 1)
		}
		if len(s.requests) != len(c.hosts) {
			t.Errorf("%s: requests %q, want %q", c.source, s.requests, c.hosts)
			continue
		}
		for i, want := range c.hosts {
			// The request line of a proxy has the host too.
			if got := s.requests[i]; !strings.HasSuffix(got, strings.TrimPrefix(want, strings.SplitN(want, "/", 2)[0])) || !strings.HasPrefix(got, strings.SplitN(want, "/", 2)[0]) {
				t.Errorf("%s: request %d is %q, want %q", c.source, i, got, want)
			}
		}
	}
}

func TestParseS3Source(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, kind, bucket, key, region, url string }{
		{"s3::https://s3.amazonaws.com/b-1/k", "s3", "b-1", "k", "", "https://s3.amazonaws.com/b-1/k"},
		{"s3::https://s3-eu-west-1.amazonaws.com/b-1/d/k", "s3", "b-1", "d/k", "eu-west-1", "https://s3-eu-west-1.amazonaws.com/b-1/d/k"},
		{"s3::https://s3.eu-west-1.amazonaws.com/b-1/d/", "s3", "b-1", "d/", "eu-west-1", "https://s3.eu-west-1.amazonaws.com/b-1/d/"},
		{"https://b-1.s3.amazonaws.com/k", "s3", "b-1", "k", "", "https://b-1.s3.amazonaws.com/k"},
		{"https://a.b.s3.us-gov-west-1.amazonaws.com/k", "s3", "a.b", "k", "us-gov-west-1", "https://a.b.s3.us-gov-west-1.amazonaws.com/k"},
		{"https://b-1.s3-us-west-2.amazonaws.com/k//sub", "s3", "b-1", "k", "us-west-2", "https://b-1.s3-us-west-2.amazonaws.com/k"},
		{"https://b-1.s3.dualstack.us-west-2.amazonaws.com/k", "s3", "b-1", "k", "us-west-2", "https://b-1.s3.dualstack.us-west-2.amazonaws.com/k"},
		{"https://b-1.s3.cn-north-1.amazonaws.com.cn/k", "s3", "b-1", "k", "cn-north-1", "https://b-1.s3.cn-north-1.amazonaws.com.cn/k"},
		{"b-1.s3.amazonaws.com/k", "s3", "b-1", "k", "", "https://b-1.s3.amazonaws.com/k"},
		{"s3.amazonaws.com/b-1/k?region=eu-west-1", "s3", "b-1", "k", "eu-west-1", "https://s3.eu-west-1.amazonaws.com/b-1/k"},
		{"b-1.s3.amazonaws.com/k?region=cn-north-1", "s3", "b-1", "k", "cn-north-1", "https://b-1.s3.cn-north-1.amazonaws.com.cn/k"},
		{"s3::http://127.0.0.1:9000/b-1/a%2Bb c", "s3", "b-1", "a+b c", "", "http://127.0.0.1:9000/b-1/a%2Bb%20c"},
		{"https://b-1.s3.amazonaws.com/k?X-Amz-Signature=x", "http", "", "", "", ""},
		{"https://b-1.s3.amazonaws.com/k?AWSAccessKeyId=a&Signature=x", "http", "", "", "", ""},
		{"https::https://b-1.s3.amazonaws.com/k", "http", "", "", "", ""},
		{"http://b-1.s3-website-us-east-1.amazonaws.com/k", "http", "", "", "", ""},
		{"https://b-1.s3-website.us-east-2.amazonaws.com/k", "http", "", "", "", ""},
		{"https://b-1.s3.amazonaws.com.example.com/k", "http", "", "", "", ""},
		{"https://s3.example.com/b-1/k", "http", "", "", "", ""},
		{"https://amazonaws.com/k", "http", "", "", "", ""},
	} {
		s, err := parseSource(c.text, nil)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if s.sourceType != c.kind {
			t.Errorf("%s is %s, want %s", c.text, s.sourceType, c.kind)
		}
		if s.s3 == nil || c.kind != "s3" {
			continue
		}
		got := *s.s3
		if got.bucket != c.bucket || got.key != c.key || got.region != c.region {
			t.Errorf("%s is %+v", c.text, got)
		}
		if err := got.setDefaultsFromEnv(nil); err != nil {
			t.Fatal(err)
		}
		if u := got.objectURL(s.url).String(); u != c.url {
			t.Errorf("%s is requested as %s, want %s", c.text, u, c.url)
		}
	}
}

// A source of S3 never panics, and the request has the key of the source.
func FuzzS3Source(f *testing.F) {
	for _, s := range []string{"s3::http://h:1/b-1/k%20//x?region=r", "https://b.s3.us-west-2.amazonaws.com/k?versionId=1", "s3.amazonaws.com/b-1/", "s3.dualstack.us-west-2.amazonaws.com/", "s3::https://.s3-us-west-2.amazonaws.com/x"} {
		f.Add(s, "id")
	}
	f.Fuzz(func(t *testing.T, text, id string) {
		s, err := parseSource(text, map[string]string{"aws_access_key_id": id, "aws_access_key_secret": "secret"})
		if err != nil || s.s3 == nil {
			return
		}
		if err := s.s3.setDefaultsFromEnv(nil); err != nil {
			t.Fatal(err)
		}
		u := s.s3.objectURL(s.url)
		parsed, err := url.Parse(u.String())
		if err != nil {
			t.Fatalf("%q is requested as %q: %v", text, u, err)
		}
		if want := strings.TrimPrefix(s.s3.bucket+"/"+s.s3.key, "/"); !s.s3.isVirtualHosted && strings.TrimSuffix(parsed.Path, "/") != "/"+strings.TrimSuffix(want, "/") {
			t.Errorf("%q is requested as %q, want the path %q", text, u, want)
		}
		if s.s3.isVirtualHosted && parsed.Path != "/"+s.s3.key {
			t.Errorf("%q is requested as %q, want the key %q", text, u, s.s3.key)
		}
		if strings.Contains(u.RawQuery, "aws_access_key") {
			t.Errorf("%q is requested as %q", text, u)
		}
		r, err := (&downloader{}).newHTTPRequest(t.Context(), u)
		if err != nil {
			return
		}
		if err := s.s3.signRequestIfNeeded(r, time.Now()); err != nil {
			t.Errorf("%q is not signed: %v", text, err)
		}
	})
}

// A list of a server never panics, and no object gets a name outside of the
// artifact.
func FuzzS3Listing(f *testing.F) {
	f.Add([]byte(`<L xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><EncodingType>url</EncodingType><Contents><Key>p/a%2Fb</Key><Size>1</Size></Contents></L>`))
	f.Add([]byte(`<L><Contents><Key>p/../x</Key></Contents><Contents><Key>p/./</Key></Contents><Contents><Key>p//</Key></Contents></L>`))
	f.Add([]byte(`<L><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></L>`))
	f.Fuzz(func(t *testing.T, text []byte) {
		page, err := parseS3Listing(strings.NewReader(string(text)))
		if err != nil {
			return
		}
		for _, o := range page.Contents {
			for _, prefix := range []string{"p/", ""} {
				name, err := cleanObjectNameBelowPrefix(prefix, o)
				if err == nil && name != "" && (!staysInDir(name) || prefix+name != o.Key || strings.ContainsRune(name, 0) || strings.Contains("/"+name+"/", "/../")) {
					t.Errorf("object %q has the name %q", o.Key, name)
				}
			}
		}
	})
}
