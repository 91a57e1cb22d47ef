package doctor

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// removed stands where a secret stood.
const removed = "REMOVED"

// telling is a key that names a secret: in JSON, also as a text within JSON, in flags, options of mounts, headers, and Go's maps.
const telling = `(?i)[\w.-]*(?:password|passwd|passphrase|secret|token|api[-_.]?key|access[-_.]?key|private[-_.]?key|credential|authorization|cookie)[\w.-]*`

// secrets are replaced one after the other. What stays behind a value, its quote or a comma, is left, so that JSON stays JSON.
var secrets = []struct {
	is   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]*`), removed}, // a JSON Web Token
	{regexp.MustCompile(`(?i)\b(bearer|basic)(\s+)[\w.~+/=-]+`), removed},
	{regexp.MustCompile(`(` + telling + `\\*["']?\s*[:=]\s*\\*["'])[^"'\\]+`), "${1}" + removed},
	{regexp.MustCompile(`(` + telling + `\\*["']?\s*[:=]\s*)[^\s"'\\,;&{}()\[\]]+`), "${1}" + removed},
	{regexp.MustCompile(`(--?` + telling + `\s+)[^\s"'\\]+`), "${1}" + removed},
	{regexp.MustCompile(`://[^/\s@"'\\]+@`), "://" + removed + "@"},
}

// hints are what a line has, in small letters, in which one of secrets is found: most lines have none, and a search for one is much faster than expressions.
var hints = []string{"passw", "passphrase", "secret", "token", "key", "credential", "authorization", "cookie", "bearer", "basic", "://", "eyj"}

var (
	keyBegin = regexp.MustCompile(`-----BEGIN [A-Z0-9 ]+-----`)
	keyEnd   = regexp.MustCompile(`-----END [A-Z0-9 ]+-----`)
)

// longestKey is how many lines of a key are left out where its end does not come.
const longestKey = 200

// cleaned takes out of a text whatever may be a secret: the values of keys that name one, what is in a URL before the host, keys between their BEGIN and END,
// and every long word that looks random. What is lost with it is little: ids of volumes, pods and images are not like that.
func cleaned(text string) string {
	var out strings.Builder
	inKey := 0
	for line := range strings.Lines(text) {
		line, end := strings.TrimSuffix(line, "\n"), line[len(strings.TrimSuffix(line, "\n")):]
		if inKey > 0 {
			at := keyEnd.FindStringIndex(line)
			if inKey--; at == nil {
				continue
			}
			line = line[at[1]:]
		}
		line, inKey = withoutKeys(line)
		if lower := strings.ToLower(line); slices.ContainsFunc(hints, func(h string) bool { return strings.Contains(lower, h) }) {
			for _, s := range secrets {
				line = s.is.ReplaceAllString(line, s.with)
			}
		}
		out.WriteString(withoutRandom(line) + end)
	}
	return out.String()
}

// withoutKeys takes keys out of a line: up to their end, or that of the text in quotes they stand in. inKey is in how many lines the end of the last one has
// to come.
func withoutKeys(line string) (rest string, inKey int) {
	at := keyBegin.FindStringIndex(line)
	if at == nil {
		return line, 0
	}
	behind := line[at[1]:]
	if end := keyEnd.FindStringIndex(behind); end != nil {
		rest, inKey = withoutKeys(behind[end[1]:])
	} else if end := strings.IndexByte(behind, '"'); end >= 0 {
		rest, inKey = withoutKeys(behind[end:])
	} else {
		inKey = longestKey
	}
	return line[:at[0]] + removed + rest, inKey
}

// longWord is how long a word is at least that may be a secret by its look alone.
const longWord = 40

// inWord are the bytes of which words consist that may be secrets: those of base64, in both its alphabets.
var inWord = func() (is [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+/=-") {
		is[c] = true
	}
	return is
}()

// withoutRandom takes long words out of a line that look random.
func withoutRandom(line string) string {
	begin := 0
	for at := 0; at <= len(line); at++ {
		switch {
		case at < len(line) && inWord[line[at]]:
		case at-begin >= longWord && looksRandom(line[begin:at]):
			return line[:begin] + removed + withoutRandom(line[at:])
		case at < len(line) && line[at] == '\\':
			at++ // the letter behind it, as in JSON, is no part of a word
			begin = at + 1
		default:
			begin = at + 1
		}
	}
	return line
}

// looksRandom: names and numbers are of small letters; a path begins with a slash, and the uuid of a device of LVM's with its name.
func looksRandom(word string) bool {
	has := func(is func(rune) bool) bool { return strings.ContainsFunc(word, is) }
	return has(unicode.IsLower) && has(unicode.IsUpper) && has(unicode.IsDigit) && !strings.HasPrefix(word, "/") && !strings.HasPrefix(word, "LVM-")
}
