#compdef minutehand
# Completion of minutehand for zsh. In ~/.zshrc, after compinit: source <(minutehand completion zsh)
_minutehand() {
  local line word
  local -a found
  while IFS= read -r line; do
    word=${line%%$'\t'*}
    found+=("${word//:/\\:}:${line#*$'\t'}")
  done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
  if (( $#found )); then
    _describe minutehand found
  else
    _files
  fi
}
if [[ $funcstack[1] == _minutehand ]]; then
  _minutehand "$@"
else
  compdef _minutehand minutehand
fi
