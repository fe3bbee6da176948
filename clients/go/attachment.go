package mailappliance

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// Attachment is a file of an [Email]. What is in it comes from one of Content,
// Path and Reader; Send reads a path or reader once, before the first attempt.
// With a ContentID it is an inline image, for <img src="cid:…"> in the HTML.
type Attachment struct {
	Filename    string    `json:"filename"` // with Path: by default its last part
	Content     []byte    `json:"content"`
	Path        string    `json:"-"`
	Reader      io.Reader `json:"-"`
	ContentType string    `json:"content_type,omitempty"` // by default from the file name's extension
	ContentID   string    `json:"content_id,omitempty"`
}

// load is the attachment with its content read.
func (a Attachment) load() (Attachment, error) {
	sources := 0
	for _, given := range []bool{a.Content != nil, a.Path != "", a.Reader != nil} {
		if given {
			sources++
		}
	}
	if sources > 1 {
		return a, errors.New("more than one of Content, Path and Reader")
	}
	var err error
	switch {
	case a.Path != "":
		if a.Filename == "" {
			a.Filename = filepath.Base(a.Path)
		}
		a.Content, err = os.ReadFile(a.Path)
	case a.Reader != nil:
		a.Content, err = io.ReadAll(a.Reader)
	case a.Content == nil:
		a.Content = []byte{} // an empty file; nil would be null
	}
	if err == nil && a.Filename == "" {
		err = errors.New("no file name")
	}
	return a, err
}
