package template

import (
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"text/template"
	"time"

	"github.com/Masterminds/sprig/v3"
)

// renderPassSprigFuncs returns the functions of the library sprig whose result depends on
// the rendering pass: those that use the current time or random numbers.
func (p *renderPass) renderPassSprigFuncs() template.FuncMap {
	const digits, letters = "0123456789", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	var printableASCII strings.Builder
	for c := byte(' '); c <= '~'; c++ {
		printableASCII.WriteByte(c)
	}
	return template.FuncMap{
		"sprig_now": p.currentTimeAndMarkUsed,
		"sprig_ago": func(at any) (string, error) {
			t, err := toTime(at)
			return p.currentTimeAndMarkUsed().Sub(t).Round(time.Second).String(), err
		},
		"sprig_durationRound": func(v any) string {
			if t, ok := v.(time.Time); ok {
				v = int64(p.currentTimeAndMarkUsed().Sub(t))
			}
			return sprig.TxtFuncMap()["durationRound"].(func(any) string)(v)
		},
		"sprig_randNumeric":  p.newRandStringFunc(digits),
		"sprig_randAlpha":    p.newRandStringFunc(letters),
		"sprig_randAlphaNum": p.newRandStringFunc(digits + letters),
		"sprig_randAscii":    p.newRandStringFunc(printableASCII.String()),
		"sprig_randBytes":    p.randBytesBase64,
		"sprig_randInt":      p.randInt,
		"sprig_shuffle":      p.shuffleString,
		"sprig_uuidv4":       p.randUUID,
	}
}

// deterministicRandomSource returns a source of random numbers. As long as the task exists, every rendering pass
// of the template gets the same numbers, so that random numbers do not change the file, and a
// generated password stays the same.
func (p *renderPass) deterministicRandomSource() (*rand.Rand, error) {
	if p.randomNumbers == nil {
		seed, err := p.data.randomSeed(p.ctx)
		if err != nil {
			return nil, fmt.Errorf("random numbers of the task: %w", err)
		}
		p.randomNumbers = rand.New(rand.NewChaCha8(sha256.Sum256(append(seed, p.DestPathForSeed...))))
	}
	return p.randomNumbers, nil
}

// readOrCreateSeed returns the seed of the task's random numbers. The seed is stored in
// the task's private directory, which is removed with the task.
func (t *taskRenderer) readOrCreateSeed() ([]byte, error) {
	seed, _, err := t.seedFile.readFile()
	if err == nil && len(seed) == sha256.Size {
		return seed, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	seed = make([]byte, sha256.Size)
	_, _ = crand.Read(seed) // Read never fails
	return seed, t.seedFile.replaceFileAtomically(seed, 0o600, -1, -1, time.Time{})
}

// newRandStringFunc returns a function that makes random strings of the characters of alphabet.
func (p *renderPass) newRandStringFunc(alphabet string) func(int) (string, error) {
	return func(n int) (string, error) {
		text, err := p.generateRandBytes(n, func(r *rand.Rand) byte { return alphabet[r.IntN(len(alphabet))] })
		return string(text), err
	}
}

func (p *renderPass) generateRandBytes(n int, nextByte func(*rand.Rand) byte) ([]byte, error) {
	if n < 0 || n > maxContentSize {
		return nil, fmt.Errorf("%d random bytes", n)
	}
	r, err := p.deterministicRandomSource()
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = nextByte(r)
	}
	return b, nil
}

func randByte(r *rand.Rand) byte { return byte(r.Uint32()) }

func (p *renderPass) randBytesBase64(n int) (string, error) {
	b, err := p.generateRandBytes(n, randByte)
	if err != nil {
		return "", err
	}
	return checkTextLengthLimit(base64.StdEncoding.EncodeToString(b))
}

func (p *renderPass) randInt(from, to int) (int, error) {
	if from >= to || to-from < 0 {
		return 0, fmt.Errorf("a random number from %d to before %d", from, to)
	}
	r, err := p.deterministicRandomSource()
	if err != nil {
		return 0, err
	}
	return from + r.IntN(to-from), nil
}

func (p *renderPass) shuffleString(s string) (string, error) {
	r, err := p.deterministicRandomSource()
	if err != nil {
		return "", err
	}
	runes := []rune(s)
	r.Shuffle(len(runes), func(i, j int) { runes[i], runes[j] = runes[j], runes[i] })
	return string(runes), nil
}

func (p *renderPass) randUUID() (string, error) {
	b, err := p.generateRandBytes(16, randByte)
	if err != nil {
		return "", err
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]), nil
}
