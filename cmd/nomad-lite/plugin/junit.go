package plugin

import (
	"encoding/xml"
	"fmt"
	"os"
	"strings"

	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	ClassName string        `xml:"classname,attr"`
	Name      string        `xml:"name,attr"`
	Seconds   float64       `xml:"time,attr"`
	Failure   *junitMessage `xml:"failure"`
	Skipped   *junitMessage `xml:"skipped"`
	Output    string        `xml:"system-out,omitempty"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// writeJUnit writes the results of `plugin test` to a file in JUnit's XML format, which CI systems read.
func writeJUnit(path, pluginPath string, results []sdktest.Result) error {
	suite := junitSuite{Name: pluginPath, Tests: len(results)}
	for _, r := range results {
		c := junitCase{ClassName: string(r.Severity), Name: r.ID, Seconds: r.Seconds}
		text := strings.Join(r.Messages, "\n")
		switch r.Verdict {
		case sdktest.Fail:
			suite.Failures++
			c.Failure = &junitMessage{r.Case, fmt.Sprintf("%s\nwhy: %s\nsee: %s", text, r.Why, r.Link)}
		case sdktest.Differs:
			c.Output = fmt.Sprintf("quirk: %s\nwhy: %s\nsee: %s", text, r.Why, r.Link)
		case sdktest.Skip:
			suite.Skipped++
			c.Skipped = &junitMessage{Message: text}
		}
		suite.Cases = append(suite.Cases, c)
	}
	text, err := xml.MarshalIndent(suite, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append([]byte(xml.Header), append(text, '\n')...), 0o644)
}
