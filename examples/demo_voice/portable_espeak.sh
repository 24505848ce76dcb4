#!/usr/bin/env bash
# Puts espeak-ng, with English only, into one folder of 2 MB for x86-64 machines without it (glibc 2.34 or newer).
# Needs Debian's apt-get and dpkg, and a C compiler for two stand-ins: only sound cards and extreme speeds need the
# libraries that they replace. Where espeak-ng is installed, none of this is needed.
# Usage: portable_espeak.sh FOLDER    (then: python -m megatalker_demo_voice ... --espeak FOLDER)
set -euo pipefail
folder=${1:?usage: portable_espeak.sh FOLDER}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

cd "$scratch"
apt-get download -qq libespeak-ng1 espeak-ng-data
for package in *.deb; do dpkg -x "$package" unpacked; done
cp "$(readlink -f unpacked/usr/lib/*/libespeak-ng.so.1)" "$folder/libespeak-ng.so.1"

data=$(echo unpacked/usr/lib/*/espeak-ng-data)
mkdir -p "$folder/espeak-ng-data/lang" "$folder/espeak-ng-data/voices"
cp "$data"/{en_dict,intonations,phondata,phonindex,phontab} "$folder/espeak-ng-data"
cp -r "$data/lang/gmw" "$folder/espeak-ng-data/lang"
cp -r "$data/voices/!v" "$folder/espeak-ng-data/voices"

for library in libpcaudio libsonic; do
  soname=$(objdump -p "$folder/libespeak-ng.so.1" | awk -v l="$library" '$1 == "NEEDED" && index($2, l) {print $2}')
  [ -n "$soname" ] || continue
  nm -D --undefined-only "$folder/libespeak-ng.so.1" | awk '$2 ~ /^(audio_|create_audio|sonic)/ {print $2}' |
    awk '{print "void *" $1 "(void) { return 0; }"}' > stand_in.c
  cc -shared -fPIC -O1 -Wl,-soname,"$soname" -o "$folder/$soname" stand_in.c
done
du -sh "$folder"
