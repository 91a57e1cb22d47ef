package volume

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// The errors that have an answer of their own. Everything below pkg/rpc wraps one of them, or none; the table that
// makes gRPC codes of them is in pkg/rpc and nowhere else. An error that wraps none of them is answered Internal.
var (
	// ErrInvalid: the request is wrong whatever the state of the world. Made by Invalid.
	ErrInvalid = errors.New("invalid argument")
	// ErrNotFound: the volume is not there, and the question was answered well.
	ErrNotFound = errors.New("not found")
	// ErrExists: the name or the target is taken, with other arguments.
	ErrExists = errors.New("already exists")
	// ErrBusy: somebody uses the volume. In a teardown: it is journalled and will be carried on.
	ErrBusy = errors.New("in use")
	// ErrPending: another operation on this volume is under way, or its teardown is unfinished.
	ErrPending = errors.New("operation pending")
	// ErrPrecondition: the volume is in a state in which the call may not be made.
	ErrPrecondition = errors.New("failed precondition")
	// ErrNoSpace: volume group, thin pool, overcommit limit or metadata area is full.
	ErrNoSpace = errors.New("no space")
	// ErrOutOfRange: a size that this node can never give, or required above limit.
	ErrOutOfRange = errors.New("out of range")
	// ErrToken: a starting_token that ListVolumes did not give out.
	ErrToken = errors.New("bad starting token")
)

// NotOurs reports whether an error says for sure that there is no logical volume of ours: none at all, or somebody else's. No other error says
// that there is none.
func NotOurs(err error) bool { return errors.Is(err, ErrNotFound) || errors.Is(err, ErrPrecondition) }

// FieldError is bad input: which field, what it held, and what to write instead.
type FieldError struct {
	Field, Value, Remedy string
}

// Error is safe to show and to send: the parts are cut to a readable length, control characters are escaped, and it is
// UTF-8 whatever the input held (a gRPC message must be).
func (e *FieldError) Error() string {
	return fmt.Sprintf("%s %q: %s", strings.Map(printable, clip(e.Field, 1)), clip(e.Value, quoted(e.Value)), clip(e.Remedy, 1))
}

// clip cuts what is too long to be read, where each byte is shown by so many.
func clip(s string, shown int) string {
	most := 400 / shown
	text := strings.ToValidUTF8(s, "?")
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(text[:most], ""), len(s))
}

// quoted tells how many bytes a quoted string may need for one of its own: \U0010ffff, or \x1d, is longer than what it stands for.
func quoted(s string) int {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return 4
	}
	return 1
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}

// Is makes errors.Is(err, ErrInvalid) true.
func (e *FieldError) Is(target error) bool { return target == ErrInvalid }

// Invalid returns an ErrInvalid that names the field, the value and the remedy. Never give it a secret as value.
func Invalid(field, value, remedy string) error {
	return &FieldError{Field: field, Value: value, Remedy: remedy}
}
