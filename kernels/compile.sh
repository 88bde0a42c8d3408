#!/bin/sh
# compile.sh OBJECT FOLDER NVCC ARGUMENT...: runs nvcc. What lies between source and object (PTX, one binary for each
# generation of GPUs) and what it reports (registers, spills: report.txt) stays in FOLDER, where tests read it.
set -eu
object=$1
folder=$2
shift 2
rm -rf "$folder"
mkdir -p "$folder"
"$@" -c -o "$object" --keep --keep-dir "$folder" >"$folder/report.txt" 2>&1 || {
    cat "$folder/report.txt"
    exit 1
}
rm -f "$folder"/*.ii "$folder"/*.cpp "$folder"/*.gpu "$folder"/*.c "$folder"/*.fatbin
