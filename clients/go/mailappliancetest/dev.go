package mailappliancetest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	mailappliance "github.com/mail-appliance/mail-appliance-go"
)

// Dev is a running "appliance dev". Messages are in memory.
type Dev struct {
	URL      string `json:"url"`
	SMTPHost string `json:"smtp_host"`
	SMTPPort int    `json:"smtp_port"`
}

// Received is a message in the inbox. Text or HTML is empty if the message has
// no such part.
type Received struct {
	ID      string `json:"id"`
	From    string `json:"from"`
	Subject string `json:"subject"`
	Text    string `json:"text"`
	HTML    string `json:"html"`
}

// StartDev starts "appliance dev" on free ports, and stops it when the test
// ends. APPLIANCE_COMMAND can name another program than "appliance". Without
// either, the test is skipped.
func StartDev(t testing.TB) *Dev {
	t.Helper()
	command := os.Getenv("APPLIANCE_COMMAND")
	if command == "" {
		command = "appliance"
		if _, err := exec.LookPath(command); err != nil {
			t.Skip("appliance is not installed, and APPLIANCE_COMMAND is not set")
		}
	}
	words := append(strings.Fields(command), "dev", "--port", "0", "--smtp-port", "0", "--json")
	process := exec.Command(words[0], words[1:]...)
	process.Stderr = os.Stderr
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "APPLIANCE_CONFIG=") && !strings.HasPrefix(entry, "NOTIFY_SOCKET=") {
			process.Env = append(process.Env, entry)
		}
	}
	output, err := process.StdoutPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatalf("%s dev: %v", command, err)
	}
	t.Cleanup(func() {
		_ = process.Process.Signal(os.Interrupt)
		_ = process.Wait()
	})
	line, err := bufio.NewReader(output).ReadBytes('\n')
	dev := &Dev{}
	if err == nil {
		err = json.Unmarshal(line, dev)
	}
	if err != nil {
		t.Fatalf("%s dev did not start: %v", command, err)
	}
	return dev
}

// Client returns a client that sends to it.
func (d *Dev) Client(t testing.TB) *mailappliance.Client {
	t.Helper()
	client, err := mailappliance.New(d.URL, mailappliance.Token("dev"))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// Wait returns the newest message to an address or domain with a part of its
// subject; empty texts match any. It waits up to timeout, at most 60 seconds.
func (d *Dev) Wait(to, subject string, timeout time.Duration) (*Received, error) {
	query := url.Values{"wait": {fmt.Sprintf("%.0fs", timeout.Seconds())}, "limit": {"1"}}
	for name, value := range map[string]string{"to": to, "subject": subject} {
		if value != "" {
			query.Set(name, value)
		}
	}
	list := struct{ Emails []*Received }{}
	if err := d.call(http.MethodGet, "/v1/emails?"+query.Encode(), &list); err != nil {
		return nil, err
	}
	if len(list.Emails) == 0 {
		return nil, fmt.Errorf("no message to %q with subject %q within %s", to, subject, timeout)
	}
	received := list.Emails[0]
	return received, d.call(http.MethodGet, "/v1/emails/"+received.ID+"/body", received)
}

// Clear deletes all messages.
func (d *Dev) Clear() error {
	return d.call(http.MethodDelete, "/v1/emails", &struct{}{})
}

func (d *Dev) call(method, path string, answer any) error {
	request, err := http.NewRequest(method, d.URL+path, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: &http.Transport{}}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s", method, path, body)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(body, answer)
}
