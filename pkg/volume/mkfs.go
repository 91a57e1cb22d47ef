package volume

import (
	"fmt"
	"slices"
	"strings"
)

// The options of mkfs that a request may use, and whether each takes a value: mke2fs(8), mkfs.xfs(8), mkfs.btrfs(8).
//
// It is a list of what is allowed because the rest is dangerous in ways that differ by program: mke2fs -d and mkfs.btrfs
// --rootdir copy files of the host into the volume, mke2fs -z and -l and mkfs.xfs -p and -c open a file by name, and
// mkfs.btrfs formats every device it is given. Inline volumes bring the options of whoever writes the pod.
var mkfsOptions = map[FS]map[string]bool{
	Ext4: {
		"-b": true, "-C": true, "-e": true, "-E": true, "-g": true, "-G": true, "-i": true, "-I": true, "-J": true, "-L": true,
		"-m": true, "-N": true, "-O": true, "-T": true, "-U": true, "-F": false, "-K": false, "-q": false,
	},
	XFS: {
		"-b": true, "-d": true, "-i": true, "-l": true, "-L": true, "-m": true, "-n": true, "-s": true, "-f": false, "-K": false, "-q": false,
	},
	Btrfs: {
		"-d": true, "--data": true, "-m": true, "--metadata": true, "-n": true, "--nodesize": true, "-s": true, "--sectorsize": true,
		"-L": true, "--label": true, "-O": true, "--features": true, "-R": true, "--runtime-features": true, "-U": true, "--uuid": true,
		"--csum": true, "--checksum": true, "-M": false, "--mixed": false, "-K": false, "--nodiscard": false, "-f": false, "-q": false,
	},
}

// Suboptions that name another device or file than the one to be formatted.
var foreignSuboptions = []string{"device", "logdev", "rtdev", "name", "file"}

// mkfsBytes bounds the options so that they fit into an LVM tag.
const mkfsBytes = 512

// parseMkfsOptions splits the options into words; which of them are allowed depends on the file system, see
// checkMkfsOptions. There is no shell, so characters that only mean something to one are a mistake.
func parseMkfsOptions(field, v string) ([]string, error) {
	words := strings.Fields(v)
	for _, w := range words {
		if strings.ContainsFunc(w, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("'\"`\\$;|&<>*?", r) }) {
			return nil, Invalid(field, v, "words separated by blanks, without quotes and shell characters (there is no shell)")
		}
	}
	if joined := strings.Join(words, " "); len(v) > mkfsBytes || len(escapeTag(joined)) > maxTag-len(tagPrefix+"mkfs=") {
		return nil, Invalid(field, v, fmt.Sprintf("too long; at most %d bytes", mkfsBytes))
	}
	return words, nil
}

// checkMkfsOptions checks that every word is an option that the file system's mkfs may be given, or the value of one.
func checkMkfsOptions(fs FS, words []string) error {
	text := strings.Join(words, " ")
	for i := 0; i < len(words); i++ {
		option := words[i]
		var value string
		takesValue, known := mkfsOptions[fs][option]
		switch {
		case known && takesValue && i+1 < len(words):
			i++
			value = words[i]
		case known && takesValue:
			return Invalid(KeyMkfsOptions, text, option+" needs a value")
		case known:
			continue
		default:
			if option, value = splitGlued(option); !mkfsOptions[fs][option] || value == "" {
				return Invalid(KeyMkfsOptions, text, fmt.Sprintf("%q is not an option of mkfs.%s that may be given; known are %s",
					words[i], fs, strings.Join(optionNames(fs), " ")))
			}
		}
		if !ownValue(value) {
			return Invalid(KeyMkfsOptions, text, fmt.Sprintf("%q names a file or device; only the volume itself may be used", value))
		}
	}
	return nil
}

// splitGlued splits "-m0" and "--csum=xxhash".
func splitGlued(word string) (option, value string) {
	if strings.HasPrefix(word, "--") {
		option, value, _ = strings.Cut(word, "=")
		return option, value
	}
	if len(word) < 2 {
		return word, ""
	}
	return word[:2], word[2:]
}

func ownValue(value string) bool {
	if strings.HasPrefix(value, "-") || strings.Contains(value, "/") {
		return false
	}
	for sub := range strings.SplitSeq(value, ",") {
		if key, _, _ := strings.Cut(sub, "="); slices.Contains(foreignSuboptions, key) {
			return false
		}
	}
	return true
}

func optionNames(fs FS) []string {
	var out []string
	for name := range mkfsOptions[fs] {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
