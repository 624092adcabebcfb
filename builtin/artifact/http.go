package artifact

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// maxResumes limits how many times in a row a download is resumed without
// receiving any data.
const maxResumes = 5

// resumeDelay is the delay before a download is resumed. Tests change it.
var resumeDelay = time.Second

// openHTTPFile requests the file and returns its content. It uses the proxies that the
// environment configures.
func (d *downloader) openHTTPFile(ctx context.Context) (io.ReadCloser, error) {
	client := d.sharedHTTPClient
	if client == nil {
		client = d.newHTTPClient()
	}
	body := &resumableBody{downloader: d, ctx: ctx, client: client, remainingResumes: maxResumes}
	response, err := d.sendWithRegionRetry(body.sendRequest)
	if err != nil {
		return nil, contextCauseOrRedactedError(ctx, err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		if d.s3 != nil {
			return nil, d.s3.newResponseError(response)
		}
		return nil, fmt.Errorf("bad response code: %d", response.StatusCode)
	}
	if limit := d.Limits.HTTPMaxBytes; limit > 0 && response.ContentLength > limit {
		response.Body.Close()
		return nil, newFileTooLargeError(d.Limits.HTTPMaxBytes)
	}
	d.transferCounter.totalBytes.Store(max(0, response.ContentLength))
	body.ReadCloser = response.Body
	if response.Header.Get("Accept-Ranges") == "bytes" {
		body.ifRangeValidator = response.Header.Get("Etag")
		if body.ifRangeValidator == "" || strings.HasPrefix(body.ifRangeValidator, "W/") {
			body.ifRangeValidator = response.Header.Get("Last-Modified")
		}
	}
	return body, nil
}

func (d *downloader) newHTTPClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // the file is stored as the server has it, also if it is compressed
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: d.Insecure}
	return &http.Client{
		Transport: transport,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if d.s3 != nil {
				return http.ErrUseLastResponse // another server must not get a signed request; sendWithRegionRetry follows redirects to another region
			}
			if len(via) >= 10 {
				return errors.New("it redirects more than 10 times")
			}
			// A redirect to another server gets no headers of the artifact block, which may
			// have secrets.
			if first := via[0].URL; r.URL.Host != first.Host || r.URL.Scheme != first.Scheme {
				for name := range d.Headers {
					r.Header.Del(name)
				}
			}
			return nil
		},
	}
}

// newHTTPRequest returns a request with the headers of the artifact block.
func (d *downloader) newHTTPRequest(ctx context.Context, target *url.URL) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	for name, value := range d.Headers {
		request.Header.Set(name, value)
	}
	if host := request.Header.Get("Host"); host != "" {
		request.Host = host
	}
	return request, nil
}

// resumableBody is the content of a file. When the connection breaks, resumableBody
// requests the rest, if the server identifies the version of the file.
type resumableBody struct {
	io.ReadCloser
	downloader       *downloader
	ctx              context.Context
	client           *http.Client
	ifRangeValidator string // ETag or Last-Modified of the file; "" if the download cannot be resumed
	receivedBytes    int64
	remainingResumes int
}

func (b *resumableBody) sendRequest() (*http.Response, error) {
	target := b.downloader.url
	if b.downloader.s3 != nil {
		target = b.downloader.s3.objectURL(b.downloader.url)
	}
	request, err := b.downloader.newHTTPRequest(b.ctx, target)
	if err != nil {
		return nil, err
	}
	if b.receivedBytes > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", b.receivedBytes))
		request.Header.Set("If-Range", b.ifRangeValidator)
	}
	if b.downloader.s3 != nil {
		if err := b.downloader.s3.signRequestIfNeeded(request, time.Now()); err != nil {
			return nil, err
		}
	}
	return b.client.Do(request)
}

func (b *resumableBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.receivedBytes, b.remainingResumes = b.receivedBytes+int64(n), maxResumes
	}
	if err == nil || err == io.EOF || b.ifRangeValidator == "" || b.receivedBytes == 0 {
		return n, err
	}
	for ; b.remainingResumes > 0; b.remainingResumes-- {
		if wait.Sleep(b.ctx, resumeDelay) != nil {
			break
		}
		if b.resumeDownload() {
			return n, nil
		}
	}
	return n, err
}

// resumeDownload requests the rest of the file, and reports whether the server sends it.
func (b *resumableBody) resumeDownload() bool {
	response, err := b.sendRequest()
	if err != nil {
		return false
	}
	from := fmt.Sprintf("bytes %d-", b.receivedBytes)
	if response.StatusCode != http.StatusPartialContent || !strings.HasPrefix(response.Header.Get("Content-Range"), from) {
		response.Body.Close()
		b.remainingResumes = 0 // not resumable: the file has changed, or the server does not support ranges
		return false
	}
	b.ReadCloser.Close()
	b.ReadCloser = response.Body
	b.remainingResumes--
	return true
}
